/* Launches of the program, watched for a while: counted, the first of each kind kept, and how long they are under way.
 *
 * While nobody watches, a launch costs one load more. What a kept launch reads and writes is copied on its device, in
 * its queue, before it runs: the program does not wait for that. */
#include "trial.h"

#include <thread>

namespace tenbin {

namespace {

constexpr size_t MOST = 64; /* different launches that are kept */
constexpr std::chrono::microseconds BETWEEN_LOOKS(500), BETWEEN_REPORTS(20000);

std::atomic<bool> watching{false};
std::mutex &watch_lock = *new std::mutex;
Watch *watch = nullptr;
std::atomic<int> launching{0}; /* threads of the program in the driver's call: some drivers run the kernel there */

/* What a command is given beside its kernel. */
struct Command {
    Queue *queue;
    Kernel *kernel;
    cl_uint dimensions;
    const size_t *offset, *global, *local;
};

std::string name_of(const Command &c) {
    std::string name = c.kernel->name;
    name.append(1, '\0').append(std::to_string(reinterpret_cast<uintptr_t>(c.kernel->program->recipe.get())));
    for (auto sizes : {c.global, c.local})
        for (cl_uint i = 0; i < c.dimensions && i < 3; i++)
            name += "," + (sizes ? std::to_string(sizes[i]) : std::string());
    for (cl_uint i = 0; c.offset && i < c.dimensions && i < 3; i++)
        if (c.offset[i]) return name + ",offset"; /* compilers treat an offset of 0 apart */
    return name;
}

int add_part(Launch &launch, std::map<Memory *, int> &known, Memory *memory) {
    auto found = known.find(memory);
    if (found != known.end()) return found->second;
    Part part;
    if (memory->parent) part.parent = add_part(launch, known, memory->parent.get());
    part.image = memory->image;
    launch.on_host = launch.on_host || memory->host;
    part.flags = memory->flags & (CL_MEM_READ_WRITE | CL_MEM_READ_ONLY | CL_MEM_WRITE_ONLY);
    part.size = memory->size;
    part.origin = memory->origin;
    part.format = memory->format;
    part.description = memory->description;
    if (!memory->parent) {
        part.description.image_row_pitch = part.description.image_slice_pitch = 0;
        part.pieces = pieces_of(*memory);
        launch.bytes += bytes_of(*memory);
    }
    launch.parts.push_back(std::move(part));
    return known[memory] = int(launch.parts.size()) - 1;
}

/* Whether a kernel writes to an argument, and the type of its elements, as far as the driver tells. */
void note_use(Launch &launch, cl_uint index, int place) {
    cl_kernel_arg_type_qualifier qualifiers = 0;
    cl_kernel_arg_address_qualifier space = 0;
    char type[128] = "";
    target->clGetKernelArgInfo(launch.kernel, index, CL_KERNEL_ARG_TYPE_QUALIFIER, sizeof(qualifiers), &qualifiers,
                               nullptr);
    target->clGetKernelArgInfo(launch.kernel, index, CL_KERNEL_ARG_ADDRESS_QUALIFIER, sizeof(space), &space, nullptr);
    target->clGetKernelArgInfo(launch.kernel, index, CL_KERNEL_ARG_TYPE_NAME, sizeof(type) - 1, type, nullptr);
    bool reads = (qualifiers & CL_KERNEL_ARG_TYPE_CONST) || space == CL_KERNEL_ARG_ADDRESS_CONSTANT ||
                 (launch.parts[size_t(place)].flags & CL_MEM_READ_ONLY);
    for (; place >= 0; place = launch.parts[size_t(place)].parent) {
        Part &part = launch.parts[size_t(place)];
        part.type = part.type.empty() || part.type == type ? type : "?";
        part.written = part.written || !reads;
    }
}

void note_arguments(Launch &launch, Kernel &kernel, std::map<Memory *, int> &known) {
    for (const Argument &argument : arguments_of(kernel)) {
        Given given;
        given.set = argument.set;
        given.size = argument.size;
        given.bytes = argument.bytes;
        if (argument.set && argument.slot) {
            Kind kind = argument.slot->kind.load(std::memory_order_acquire);
            if (argument.slot->generation != argument.generation) throw Trouble{"an argument has been released"};
            if (kind == Kind::memory) {
                given.part = add_part(launch, known, static_cast<Memory *>(argument.slot->object));
                note_use(launch, cl_uint(launch.arguments.size()), given.part);
            } else {
                auto sampler = static_cast<Sampler *>(argument.slot->object);
                given.sampler = true;
                given.normalized = sampler->normalized;
                given.addressing = sampler->addressing;
                given.filter = sampler->filter;
            }
        }
        launch.arguments.push_back(std::move(given));
    }
}

std::string mib(size_t bytes) { return std::to_string((bytes + (size_t(1) << 20) - 1) >> 20) + " MiB"; }

/* Copy, on the device and in its queue, what the launch will find. */
void keep_contents(Launch &launch, const std::map<Memory *, int> &known, const Command &c, const Waits &waits,
                   std::vector<cl_event> &copied) {
    cl_command_queue queue = real_of(c.queue);
    size_t need = 2 * launch.bytes; /* a copy to work on beside it */
    if (need > watch->allowed) throw Trouble{"needs " + mib(need) + " of device memory, allowed are " +
                                             mib(watch->allowed)};
    if (watch->held + need > watch->allowed)
        throw Trouble{"other kernels hold the " + mib(watch->allowed) + " of device memory that are allowed"};
    constexpr size_t zero[3]{};
    for (auto &[memory, place] : known) {
        Part &part = launch.parts[size_t(place)];
        if (part.parent >= 0) continue;
        cl_int error;
        part.kept = make_part(launch.context, part, nullptr, &error);
        launch.own.keep(Kind::memory, part.kept, error, "make device memory for a copy");
        size_t region[3]{part.size, 1, 1};
        if (part.image) memory->extent(region);
        cl_event done = nullptr;
        error = part.image ? target->clEnqueueCopyImage(queue, real_of(memory), part.kept, zero, zero, region,
                                                        waits.count, waits.list, &done)
                           : target->clEnqueueCopyBuffer(queue, real_of(memory), part.kept, 0, 0, part.size,
                                                         waits.count, waits.list, &done);
        if (error == CL_SUCCESS) copied.push_back(done);
        step(error, "copy what a launch reads");
    }
    watch->held += need;
}

void keep_launch(Launch &launch, const Command &c, const Waits &waits, std::vector<cl_event> &copied) {
    launch.name = c.kernel->name;
    launch.recipe = c.kernel->program->recipe;
    launch.dimensions = std::min<cl_uint>(c.dimensions, 3);
    launch.has_offset = c.offset;
    launch.has_local = c.local;
    for (cl_uint i = 0; i < launch.dimensions; i++) {
        launch.global[i] = c.global ? c.global[i] : 0;
        if (c.offset) launch.offset[i] = c.offset[i];
        if (c.local) launch.local[i] = c.local[i];
    }
    if (!launch.recipe) throw Trouble{"its program has no source"};
    cl_context context = real_of(c.queue->context.get());
    launch.context = launch.own.keep(Kind::context, context, target->clRetainContext(context), "hold a context");
    cl_int error;
    launch.kernel = target->clCreateKernel(real_of(c.kernel->program.get()), launch.name.c_str(), &error);
    launch.own.keep(Kind::kernel, launch.kernel, error, "make a kernel");
    std::map<Memory *, int> known;
    note_arguments(launch, *c.kernel, known);
    keep_contents(launch, known, c, waits, copied);
}

struct Noted {
    std::shared_ptr<Launch> launch; /* none: nobody watches, or there are too many different ones */
    bool is_new = false;
    std::vector<cl_event> copied; /* what it is to wait for */
};

/* Count a launch, and keep it if it is the first of its kind. */
Noted note_launch(const Command &c, const Waits &waits) {
    std::lock_guard<std::mutex> guard(watch_lock);
    Noted noted;
    if (!watch) return noted;
    auto began = Clock::now();
    std::string name = name_of(c);
    auto found = watch->launches.find(name);
    if (found != watch->launches.end()) {
        noted.launch = found->second;
        noted.launch->count++;
        return noted;
    }
    if (watch->launches.size() >= MOST) {
        watch->others++;
        return noted;
    }
    auto launch = noted.launch = std::make_shared<Launch>();
    noted.is_new = true;
    launch->count = 1;
    try {
        keep_launch(*launch, c, waits, noted.copied);
    } catch (const Trouble &trouble) {
        launch->trouble = trouble.what;
        launch->own.release();
    }
    watch->launches.emplace(name, launch);
    watch->stopped.add(since(began));
    return noted;
}

bool in_order(const Queue &queue) {
    for (size_t i = 0; i + 1 < queue.properties.size(); i += 2)
        if (queue.properties[i] == CL_QUEUE_PROPERTIES)
            return !(queue.properties[i + 1] & CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE);
    return true;
}

/* Watch until it ends, and until the copies before it have ended. */
void note_launched(const Command &c, cl_event done, Noted &noted) {
    std::lock_guard<std::mutex> guard(watch_lock);
    if (!watch || !watch->is_timed) return;
    UnderWay &work = watch->under_way[c.queue];
    work.in_order = in_order(*c.queue);
    if (target->clRetainEvent(done) == CL_SUCCESS) work.launches.emplace_back(done, noted.launch);
    watch->copies.insert(watch->copies.end(), noted.copied.begin(), noted.copied.end());
    noted.copied.clear();
}

__attribute__((noinline)) cl_int launch_watched(const Command &c, const Waits &waits, cl_event *made) {
    Noted noted = note_launch(c, waits);
    cl_event done = nullptr;
    std::vector<cl_event> all(waits.list, waits.list + waits.count);
    if (!in_order(*c.queue)) all.insert(all.end(), noted.copied.begin(), noted.copied.end());
    launching++;
    cl_int error = target->clEnqueueNDRangeKernel(real_of(c.queue), real_of(c.kernel), c.dimensions, c.offset,
                                                  c.global, c.local, cl_uint(all.size()),
                                                  all.empty() ? nullptr : all.data(), &done);
    launching--;
    if (done) note_launched(c, done, noted);
    for (cl_event one : noted.copied) target->clReleaseEvent(one);
    if (!done) return error;
    if (made && target->clRetainEvent(done) == CL_SUCCESS) *made = done;
    if (noted.is_new)
        noted.launch->done = done;
    else
        target->clReleaseEvent(done);
    return error;
}

cl_int status_of(cl_event event) {
    cl_int status = CL_QUEUED;
    target->clGetEventInfo(event, CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof(status), &status, nullptr);
    return status;
}

void drop_ended(std::vector<cl_event> &events) {
    auto ended = [](cl_event one) {
        bool has_ended = status_of(one) <= CL_COMPLETE;
        if (has_ended) target->clReleaseEvent(one);
        return has_ended;
    };
    events.erase(std::remove_if(events.begin(), events.end(), ended), events.end());
}

/* Of launches: some have not ended, the driver says that some run. Before they run, commands wait for other work of
 * the queue, or for the program to flush it; but some drivers do not tell the difference. */
struct Seen {
    bool busy, running;
};

Seen look_at(UnderWay &work) {
    Seen seen{false, false};
    for (auto one = work.launches.begin(); one != work.launches.end();) {
        auto &[event, launch] = *one;
        cl_int status = status_of(event);
        if (status <= CL_COMPLETE) {
            if (launch) launch->ended++;
            target->clReleaseEvent(event);
            one = work.launches.erase(one);
            continue;
        }
        seen.busy = true;
        seen.running = seen.running || status <= CL_SUBMITTED;
        if (work.in_order) break;
        ++one;
    }
    return seen;
}

} // namespace

std::atomic<int> Awaiting::threads{0};

/* Half of the time since the last look is of what was seen then, half of what is seen now. What the layer takes for
 * itself does not count: the program stands for it, or its device copies. */
void Watch::look() {
    auto now = Clock::now();
    drop_ended(copies);
    drop_ended(before);
    bool running = launching > 0 || !before.empty(), busy = running || Awaiting::threads > 0;
    for (auto &[queue, work] : under_way) {
        Seen seen = look_at(work);
        busy = busy || seen.busy;
        running = running || seen.running;
    }
    double passed_s = std::max(0.0, seconds(now - last_look) - (stopped.total_s - last_stopped_s));
    if (copies.empty()) {
        seen_s += passed_s;
        busy_s += passed_s * (was_busy + busy) / 2;
        running_s += passed_s * (was_running + running) / 2;
        looks++;
    }
    last_look = now;
    last_stopped_s = stopped.total_s;
    was_busy = busy;
    was_running = running;
}

Watching::Watching(size_t allowed, bool is_timed) {
    found.allowed = allowed;
    found.is_timed = is_timed;
    if (is_timed) {
        Closed gate;
        mark_queues(found.before);
    }
    std::lock_guard<std::mutex> guard(watch_lock);
    watch = &found;
    watching = true;
}

void Watching::wait(Clock::time_point until, const Progress &progress) {
    auto next = Clock::now();
    for (auto now = next; now < until && !is_exiting(); now = Clock::now()) {
        if (now >= next) {
            progress("");
            next = now + BETWEEN_REPORTS;
        }
        if (found.is_timed) {
            std::lock_guard<std::mutex> guard(watch_lock);
            found.look();
        }
        std::this_thread::sleep_until(std::min(until, found.is_timed ? now + BETWEEN_LOOKS : next));
    }
}

void Watching::end() {
    watching = false;
    std::lock_guard<std::mutex> guard(watch_lock);
    watch = nullptr;
    for (auto &[queue, work] : found.under_way)
        for (auto &[event, launch] : work.launches) target->clReleaseEvent(event);
    for (auto *events : {&found.copies, &found.before}) {
        for (cl_event one : *events) target->clReleaseEvent(one);
        events->clear();
    }
    found.under_way.clear();
}

cl_int CL_API_CALL layer_clEnqueueNDRangeKernel(cl_command_queue queue, cl_kernel kernel, cl_uint dimensions,
                                                const size_t *offset, const size_t *global, const size_t *local,
                                                cl_uint given, const cl_event *handles, cl_event *event) {
    Inside inside;
    Queue *own_queue = get<Queue>(queue);
    if (!own_queue) return CL_INVALID_COMMAND_QUEUE;
    Kernel *own_kernel = get<Kernel>(kernel);
    if (!own_kernel) return CL_INVALID_KERNEL;
    touch_arguments(own_kernel);
    own_kernel->note_group(dimensions, local);
    Waits waits(given, handles, own_queue);
    if (waits.error) return waits.error;
    cl_event made = nullptr, *wanted = event ? &made : nullptr;
    cl_int error;
    if (__builtin_expect(watching.load(std::memory_order_relaxed), 0))
        error = launch_watched({own_queue, own_kernel, dimensions, offset, global, local}, waits, wanted);
    else
        error = target->clEnqueueNDRangeKernel(real_of(own_queue), real_of(own_kernel), dimensions, offset, global,
                                               local, waits.count, waits.list, wanted);
    return finish_command(inside, own_queue, error, made, event, false);
}

} // namespace tenbin
