/* What is known of every object of the program: enough to make it anew on another device. */
#pragma once
#include <string.h>

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "gate.h"
#include "handles.h"

namespace tenbin {

struct Platform : Object {
    static constexpr Kind kind = Kind::platform;
    using Handle = cl_platform_id;
};

/* The one device that the program sees; `real` is the device that the program is on. */
struct Device : Object {
    static constexpr Kind kind = Kind::device;
    using Handle = cl_device_id;
};

using Callbacks = std::vector<std::function<void()>>;

/* What an object was on the processor that the program has left last: it is used again when the program goes back.
 * A program is kept together with its context. */
struct Left {
    void *real = nullptr;
    size_t candidate = 0;
    void *take(size_t wanted) { return candidate == wanted ? std::exchange(real, nullptr) : nullptr; }
};

struct Context : Object {
    static constexpr Kind kind = Kind::context;
    using Handle = cl_context;
    std::vector<cl_context_properties> properties; /* as the program gave them, with our platform */
    void(CL_CALLBACK *notify)(const char *, const void *, size_t, void *) = nullptr;
    void *notify_data = nullptr;
    Callbacks farewells;
    Left left;
    ~Context() override;
    cl_context make(const struct Candidate &place, cl_int *error) const;
};

struct Queue : Object {
    static constexpr Kind kind = Kind::queue;
    using Handle = cl_command_queue;
    Ref<Context> context;
    std::vector<cl_queue_properties> properties; /* with a 0 at the end */
    std::mutex lock; /* of what follows, where the gate is open */
    std::set<Queue *> behind; /* others, maybe gone by now, for whose commands some of its own wait */
    void let_go(void *last) override;
};

struct Sampler : Object {
    static constexpr Kind kind = Kind::sampler;
    using Handle = cl_sampler;
    Ref<Context> context;
    cl_bool normalized = CL_TRUE;
    cl_addressing_mode addressing = CL_ADDRESS_CLAMP;
    cl_filter_mode filter = CL_FILTER_NEAREST;
    std::vector<cl_sampler_properties> properties; /* as given, with the 0 at the end; none: of OpenCL 1 */
};

/* A buffer of a device that the program has left, kept while a pointer into its mapping is used. */
struct Former {
    cl_mem memory;
    cl_command_queue queue;
    Former(cl_mem m, cl_command_queue q) : memory(m), queue(q) {}
    Former(const Former &) = delete;
    Former &operator=(const Former &) = delete;
    ~Former();
};

struct Mapping {
    void *pointer;
    cl_map_flags flags;
    size_t origin[3], region[3], row_pitch, slice_pitch;
    std::shared_ptr<Former> former;
};

struct Memory : Object {
    static constexpr Kind kind = Kind::memory;
    using Handle = cl_mem;
    Ref<Context> context;
    Ref<Memory> parent; /* of a sub-buffer, or of an image that is a view of a buffer */
    bool image = false;
    cl_mem_flags flags = 0; /* as given */
    size_t size = 0, origin = 0;
    void *host = nullptr;
    cl_image_format format{};
    cl_image_desc description{};
    size_t element_size = 0;
    std::vector<cl_mem_properties> properties; /* as given: none, or the 0 at their end */
    std::atomic<bool> dirty{true}; /* written since a move began to copy it; of its parent, if it has one */
    std::mutex lock; /* of what follows */
    std::vector<Mapping> mappings;
    Callbacks farewells;
    void let_go(void *last) override;
    bool host_may(cl_mem_flags forbidden) const { return !(flags & (forbidden | CL_MEM_HOST_NO_ACCESS)); }
    void extent(size_t region[3]) const; /* of an image, as commands take it */
    void touch();                        /* a command, a kernel or the host writes to it */
};

/* How a program came to be; never changed once made, so that programs linked from it may refer to it. */
struct Recipe {
    enum How : uint32_t { source, built, compiled, linked } how;
    std::string text, options;
    std::vector<std::pair<std::string, std::shared_ptr<const Recipe>>> headers;
    std::vector<std::shared_ptr<const Recipe>> inputs;
};
using RecipePointer = std::shared_ptr<const Recipe>;

struct Program : Object {
    static constexpr Kind kind = Kind::program;
    using Handle = cl_program;
    Ref<Context> context;
    RecipePointer recipe; /* none: a program that cannot be made anew */
    bool from_binary = false;
    cl_build_status status = CL_BUILD_NONE; /* as after the program's own last build */
    std::string log;
    Left left;
    RecipePointer left_recipe; /* of `left`; a later build has another one */
    std::mutex lock; /* of what follows, where the gate is open */
    std::map<std::string, std::atomic<size_t>> groups; /* by kernel: the largest of launches that name a local size */
    std::atomic<size_t> *group_of(const std::string &kernel) {
        std::lock_guard<std::mutex> guard(lock);
        return &groups.try_emplace(kernel, 0).first->second;
    }
    ~Program() override;
};

struct Argument {
    enum Is : uint8_t { unknown, value, memory, sampler, local } is = unknown;
    bool set = false, writes = true; /* writes: a kernel may, to the memory that it is */
    uint32_t generation = 0; /* of the object in `slot` when it was given */
    Slot *slot = nullptr;
    size_t size = 0;
    std::string bytes; /* as given, if no object; empty: no value was given (local memory) */
};

struct Kernel : Object {
    static constexpr Kind kind = Kind::kernel;
    using Handle = cl_kernel;
    Ref<Program> program;
    std::string name;
    std::vector<Argument> arguments;
    std::atomic_flag lock = ATOMIC_FLAG_INIT; /* what the driver has is what `arguments` say */
    std::atomic<size_t> *largest_group = nullptr; /* of its program, which many kernels may share */
    void note_group(cl_uint dimensions, const size_t *local) {
        size_t items = local ? 1 : 0;
        for (cl_uint i = 0; local && i < dimensions; i++) items *= local[i];
        if (__builtin_expect(items > largest_group->load(std::memory_order_relaxed), 0)) *largest_group = items;
    }
};

struct Event : Object {
    static constexpr Kind kind = Kind::event;
    using Handle = cl_event;
    Ref<Context> context;
    Ref<Queue> queue;
    bool user = false;
    std::atomic<bool> awaited{false};       /* a user event: by a command or a callback */
    std::atomic<cl_int> user_status{CL_SUBMITTED};
    cl_command_type type = 0;
    bool recorded = false; /* complete, and its device may be gone: what follows is all there is */
    cl_int status = CL_COMPLETE, times_error = CL_PROFILING_INFO_NOT_AVAILABLE;
    cl_ulong times[5] = {};
    std::vector<std::shared_ptr<struct Notice>> notices; /* callbacks of the program */
    cl_int state() const; /* its execution status now */
    void tell_all();      /* once it is recorded: call back what the driver has not called back */
};

/* The events that a command waits for, as the driver knows them; those of devices left behind are dropped. */
class Waits {
    cl_event few[8];
    std::vector<cl_event> many;
    cl_event done = nullptr;

  public:
    cl_uint count = 0;
    const cl_event *list = nullptr;
    cl_int error = CL_SUCCESS;
    Waits(cl_uint given, const cl_event *handles, Queue *queue = nullptr); /* queue: of the command */
    ~Waits();
    Waits(const Waits &) = delete;
    Waits &operator=(const Waits &) = delete;
    /* An empty list means "all before" to markers and barriers: put a complete event in place of a dropped one. */
    void keep_meaning(cl_uint given, const Queue *queue);
};

/* End an enqueue: wrap the event that the driver made, wait (outside) where the program asked to. */
cl_int finish_command(Inside &inside, Queue *queue, cl_int error, cl_event made, cl_event *event, bool blocking,
                      cl_command_type type = 0);

/* Run on a thread of the layer, outside of all calls; there the program's callbacks run. */
void later(std::function<void()> work);
void run_later(Callbacks &callbacks); /* the last registered first */

/* Say that the program uses what cannot be moved; the program runs on. */
void not_movable(const char *what);

/* Program recipes. */
cl_program make_program(const Recipe &recipe, cl_context context, cl_device_id device, cl_int *error);
RecipePointer source_of(const Recipe &recipe);

/* Answer a query of information. */
cl_int answer(const void *data, size_t bytes, size_t size, void *value, size_t *size_ret);
cl_int CL_API_CALL layer_clGetDeviceInfo(cl_device_id device, cl_device_info what, size_t size, void *value,
                                         size_t *size_ret); /* with the limits that all devices admit */
template <class T> cl_int answer(const T &data, size_t size, void *value, size_t *size_ret) {
    return answer(&data, sizeof(T), size, value, size_ret);
}
template <class T> cl_int answer_list(const std::vector<T> &list, size_t size, void *value, size_t *size_ret) {
    return answer(list.data(), list.size() * sizeof(T), size, value, size_ret);
}
inline cl_int answer(const std::string &text, size_t size, void *value, size_t *size_ret) {
    return answer(text.c_str(), text.size() + 1, size, value, size_ret);
}

/* The devices (devices.cpp). */
struct Candidate {
    cl_platform_id platform;
    cl_device_id device;
    std::string key, name;
};
const std::vector<Candidate> &candidates(); /* devices that the program may use; found at the first call */
Platform *the_platform();                   /* none where no device is there */
Device *the_device();
size_t current_candidate();
void set_current(size_t candidate);
bool is_ours(cl_device_id device);

void user_event_set(); /* a move may wait for it */

/* A thread of the program waits for work of its device; some drivers wake it a good while after the work has ended. */
struct Awaiting {
    Awaiting() { threads++; }
    ~Awaiting() { threads--; }
    Awaiting(const Awaiting &) = delete;
    Awaiting &operator=(const Awaiting &) = delete;
    static std::atomic<int> threads;
};

void start_control();
void take_leave();  /* the process ends: nothing moves any more */
void leave_first(); /* at the end of the process: before what drivers have registered so far */
/* Wait until all work of a queue has ended, by an event: clFinish of some drivers (rusticl of Mesa 22.3) returns while
 * work that was flushed is queued. */
cl_int finish(cl_command_queue queue);
void reap_queues(bool all); /* queues that the program has released with work under way */
void leftover_events(std::vector<cl_event> &events); /* the last of those queues; the caller's to release */
cl_int set_arguments(const Kernel &kernel);
void touch_arguments(Kernel *kernel); /* it is launched */
std::vector<Argument> arguments_of(Kernel &kernel);

} // namespace tenbin
