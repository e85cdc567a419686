/* One launch of each kernel of the program, kept and replayed on another device. */
#pragma once
#include <algorithm>
#include <deque>

#include "json.h"
#include "move.h"

namespace tenbin {

constexpr double PATIENCE_S = 5.0; /* until work of the program has ended */

/* Objects of a driver that the layer has made for itself. */
class Own {
    Replaced made;

  public:
    Own() = default;
    ~Own() { release(); }
    void release() {
        std::reverse(made.list.begin(), made.list.end());
        made.release();
    }
    Own(const Own &) = delete;
    Own &operator=(const Own &) = delete;
    template <class T> T keep(Kind kind, T object, cl_int error, const char *what) {
        if (error == CL_SUCCESS) made.list.emplace_back(kind, object);
        step(error, what);
        return object;
    }
};

/* A buffer, an image, or a part of such, as the program had it at the launch. */
struct Part {
    int parent = -1; /* its place in the launch; none: it has contents of its own */
    bool image = false, written = false;
    cl_mem_flags flags = 0;
    size_t size = 0, origin = 0;
    cl_image_format format{};
    cl_image_desc description{};
    std::vector<Piece> pieces;
    std::string type; /* that a kernel gives to its elements; empty: several, or not known */
    cl_mem kept = nullptr; /* a copy of the contents before the launch */
    std::vector<std::vector<char>> contents; /* of it, by pieces, once they are taken off the device */
};

struct Given { /* an argument of a kernel */
    int part = -1;
    bool sampler = false, set = false;
    cl_bool normalized = CL_FALSE;
    cl_addressing_mode addressing = 0;
    cl_filter_mode filter = 0;
    size_t size = 0;
    std::string bytes;
};

struct Launch {
    Own own;
    Launch() = default;
    ~Launch() {
        if (done) target->clReleaseEvent(done);
    }
    Launch(const Launch &) = delete;
    Launch &operator=(const Launch &) = delete;
    std::atomic<cl_event> done{nullptr}; /* of the program's own launch */
    bool on_host = false;                /* reads memory to which the host may write at any time */
    std::string name, trouble;
    RecipePointer recipe;
    unsigned long count = 0, ended = 0; /* launches of this kind; those of them that were seen to have ended */
    size_t bytes = 0;
    cl_uint dimensions = 0;
    bool has_offset = false, has_local = false;
    size_t offset[3]{}, global[3]{}, local[3]{};
    std::vector<Part> parts;
    std::vector<Given> arguments;
    cl_context context = nullptr;
    cl_kernel kernel = nullptr; /* of the layer, on the device that the program is on */
};

struct Replay {
    std::vector<double> source_s, target_s; /* of each launch and its end */
    double source_call_s = 0, target_call_s = 0; /* of a command that does nothing */
    size_t compared = 0, differing = 0;          /* bytes */
    double relative = -1;                        /* largest difference of floating point numbers; below 0: none */
    std::string types;
};

/* How the program was kept from going on. */
struct Stopped {
    double total_s = 0, longest_s = 0;
    void add(double took_s) {
        total_s += took_s;
        longest_s = std::max(longest_s, took_s);
    }
};

struct UnderWay { /* launches in a queue that have not ended */
    bool in_order = true;
    std::deque<std::pair<cl_event, std::shared_ptr<Launch>>> launches;
};

/* Launches of the program, kept for a while. */
struct Watch {
    std::map<std::string, std::shared_ptr<Launch>> launches;
    size_t allowed = 0, held = 0; /* bytes of device memory */
    unsigned long others = 0;     /* launches beyond the most that are kept */
    Stopped stopped;

    bool is_timed = false; /* then this is looked at now and then: */
    double seen_s = 0;     /* how long all looks cover */
    double busy_s = 0;     /* of that: some launch had not ended, or the program waited */
    double running_s = 0;  /* of that: the driver said that one ran */
    unsigned long looks = 0;
    std::map<const Queue *, UnderWay> under_way; /* the queue may be gone meanwhile */
    std::vector<cl_event> copies; /* made by the layer */
    std::vector<cl_event> before; /* markers behind work from before the watch */
    Clock::time_point last_look = Clock::now();
    double last_stopped_s = 0;
    bool was_busy = false, was_running = false;
    void look();
};
class Watching {
  public:
    Watch found;
    explicit Watching(size_t allowed, bool is_timed = false);
    ~Watching() { end(); }
    void wait(Clock::time_point until, const Progress &progress);
    void end();
};
size_t memory_allowed(const Candidate &place);

/* Place of the target: a context of the layer's own, and programs made there. */
struct Target {
    Own own;
    const Candidate &place;
    cl_context context = nullptr;
    std::map<RecipePointer, cl_program> programs;
    explicit Target(const Candidate &where);
    cl_program build(const RecipePointer &recipe);
};

bool has_ended(cl_event event, Clock::time_point until); /* waits */
bool has_ended(const Launch &launch, Clock::time_point until); /* then what it has read is kept */
void take_contents(Launch &launch, cl_device_id device); /* off the device, and release what is there */
void run_first(const Launch &launch, cl_program program, cl_device_id device, Clock::time_point until);

cl_mem make_part(cl_context context, const Part &part, cl_mem parent, cl_int *error);
Replay replay(const Launch &launch, Target &there, Stopped &stopped, const Progress &progress);

} // namespace tenbin
