/* Moving all objects of the program to another device, as a transaction. */
#pragma once
#include <chrono>
#include <map>
#include <string>

#include "objects.h"

namespace tenbin {

using Clock = std::chrono::steady_clock;
inline double seconds(Clock::duration time) { return std::chrono::duration<double>(time).count(); }
inline double since(Clock::time_point began) { return seconds(Clock::now() - began); }
inline Clock::time_point after(Clock::time_point began, double wait_s) {
    return began + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(wait_s));
}

struct Trouble {
    std::string what;
    bool passes = false;   /* by itself: the move is postponed */
    const char *code = ""; /* for programs: "device-memory", "host-memory" (too little of it) */
};

/* A step of a move: what fails here is put back. Builds for tests let a step fail by request. */
void step(cl_int error, const char *what);
extern std::atomic<int> steps, fail_at; /* steps of this move so far; the one that fails, or below 0 kills (tests) */

/* A part of a buffer or an image that is copied at once. */
struct Piece {
    size_t origin[3], region[3], bytes;
};
constexpr size_t CHUNK = size_t(4) << 20; /* small, so that transfers to a file go beside those from the device */
std::vector<Piece> pieces_of(const Memory &memory);
size_t bytes_of(const Memory &memory);

/* Contents of the program's memory while it is parked: in memory, or in a file without a name. */
class Store {
  public:
    virtual ~Store() = default;
    virtual char *space(size_t bytes) = 0; /* where the next piece is to be put */
    virtual void put(size_t bytes) = 0;    /* it is there */
    virtual void written() = 0;            /* all pieces are there */
    virtual void rewind() = 0;
    virtual const char *take(size_t bytes) = 0; /* the next piece */
    virtual bool has_all_at_once() const = 0;   /* several pieces may be taken as one */
    virtual const char *place() const = 0;
};
std::unique_ptr<Store> store_in_memory(size_t bytes);
std::unique_ptr<Store> store_in_folder(const std::string &folder, size_t bytes);

/* Queues of the layer for the copies of a move, one a context. */
class CopyQueues {
    std::map<const Context *, cl_command_queue> queues;

  public:
    CopyQueues() = default;
    ~CopyQueues() { release(); }
    void release();
    CopyQueues(const CopyQueues &) = delete;
    CopyQueues &operator=(const CopyQueues &) = delete;
    cl_command_queue of(const Context *context, cl_context real, cl_device_id device);
};

void touch_pages(void *start, size_t bytes); /* before the first copy to new memory */
void touch_new(const Memory &memory, cl_mem next, cl_command_queue to);
void save_contents(Store &store, CopyQueues &queues);
void load_from_device(const Memory &memory, cl_mem next, cl_command_queue from, cl_command_queue to);
void load_from_store(Memory &memory, Store &store, cl_command_queue to);

/* What a move takes, as far as it is known right before its pause. */
struct Estimate {
    double bytes = 0, dirty_bytes = 0; /* all memory; what the pause has to copy */
    double dirty_s = 0;                /* within which that was written */
    double prepare_s = 0, copy_s = 0;  /* contexts and programs; contents, while the program runs */
    double drain_s = 0;                /* until work that was under way had ended */
    double bytes_per_s = -1;           /* of a copy to memory that is there */
};

/* Contexts, programs and memory made on another device while the program runs (prepare.cpp). */
class Prepared {
    std::map<Context *, cl_context> contexts;
    std::map<RecipePointer, cl_program> programs;
    std::map<Memory *, cl_mem> memories;
    Estimate found;
    Clock::time_point round_began;

    void check_groups();
    bool begin_round(std::vector<Memory *> &wanted, std::vector<cl_event> &before);
    double copy_all(const std::vector<Memory *> &wanted, double enough_bytes);
    std::vector<Memory *> dirty_ones() const;

  public:
    const size_t candidate;
    CopyQueues from, to;
    explicit Prepared(size_t where);
    ~Prepared(); /* with the gate open */
    Prepared(const Prepared &) = delete;
    Prepared &operator=(const Prepared &) = delete;
    void keep(); /* with the gate closed: contexts and programs of a device whose memory is the host's */
    void release(); /* what was made and not taken; some of it may rest on what was taken */
    void make(); /* what is not made yet */
    void build(); /* with the gate closed, in a thread beside it: programs for contexts that are made */
    void copy();
    Estimate estimate() const;
    cl_context take(Context *context);
    cl_program take(const RecipePointer &recipe);
    cl_program find(const RecipePointer &recipe) const; /* none: it is not built */
    void prepared_in(double took_s) { found.prepare_s = took_s; } /* all before the copies */
    cl_mem take(Memory *memory); /* none: it was not copied */
};

/* Launches of the program, to run each once on a device to which it moves, before it gets there (warm_up.cpp). */
class WarmUp {
    std::vector<std::shared_ptr<struct Launch>> launches;

  public:
    size_t bytes_beside = 0; /* that the program needs on the device meanwhile */
    WarmUp() = default;
    WarmUp(const WarmUp &) = delete;
    WarmUp &operator=(const WarmUp &) = delete;
    void watch(double watch_s, const std::function<void()> &meanwhile); /* throws only what that throws */
    void run(const Prepared &prepared) const noexcept;
};

/* The driver's objects that a move has replaced. */
struct Replaced {
    std::vector<std::pair<Kind, void *>> list;
    void release();
};

struct Markers { /* behind work in queues */
    std::vector<cl_event> list;
    Markers() = default;
    ~Markers();
    Markers(const Markers &) = delete;
    Markers &operator=(const Markers &) = delete;
    void wait() const;
};

/* With the gate closed, in this order; all but `commit` may throw Trouble, and `undo` then puts all back. */
bool has_unset_event(); /* a user event on which others wait */
bool mark_queues(std::vector<cl_event> &before); /* markers that end after all work; none where that waits for such */
void drain();
cl_mem make_memory(const Memory &memory, cl_context context, cl_mem parent, cl_int *error);
/* Throws where the place takes fewer work-items in a group of this kernel than the program launches. */
void check_group(cl_program made, const std::string &kernel, size_t used, const Candidate &place);
void make_next(Prepared &prepared, Store *store, const WarmUp *warm_up);
void undo();
void record_events();
void keep_mappings(CopyQueues &from); /* pointers that the program has into memory that is left */
Replaced keep_left(); /* contexts and programs of a processor, for the way back; gives what was kept before */
Replaced commit(size_t candidate);
Replaced detach();

/* Requests (transaction.cpp); each throws Trouble. */
constexpr double WATCH_S = 0.25; /* at least, for launches to warm up with */
void move_to(const std::string &key, double patience_s, double watch_s = WATCH_S);
void park(const std::string &folder, double patience_s); /* "": in memory */
void resume(const std::string &key, const std::function<void()> &answer); /* "": where it was */
void estimate(const std::string &key); /* all of a move but its pause */
void note_warmed(unsigned launches);
void stop_moves(); /* the process ends */
void let_thread_end(bool is_main);
std::string status_json();
bool is_parked();
bool is_exiting();

/* Keep moves away meanwhile; throws Trouble if the program cannot be moved, or not to the device of this key. */
std::unique_lock<std::mutex> keep_moves_away(const std::string &key, size_t *candidate);

/* Try before move (trial.cpp): the answer in JSON; throws Trouble. */
using Progress = std::function<void(const std::string &)>; /* "": none; throws Trouble if nobody asks any more */
std::string try_on(const std::string &key, double watch_s, size_t asked_mib, const Progress &progress);

} // namespace tenbin
