/* Try before move: launches of the program are kept while it runs, and replayed on another device.
 *
 * While none is asked, a launch costs one load more. What a launch reads and writes is copied on its device, in its
 * queue, before it runs: the program does not wait for that. */
#include "trial.h"

#include <thread>

namespace tenbin {

namespace {

constexpr size_t MOST = 64; /* different launches that are kept */

std::atomic<bool> watching{false};
std::mutex &watch_lock = *new std::mutex;
Watch *watch = nullptr;

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

/* Count a launch, and keep and return it if it is the first of its kind; `copied`: what it is to wait for. */
std::shared_ptr<Launch> note_launch(const Command &c, const Waits &waits, std::vector<cl_event> &copied) {
    std::lock_guard<std::mutex> guard(watch_lock);
    if (!watch) return nullptr;
    auto began = Clock::now();
    std::string name = name_of(c);
    auto found = watch->launches.find(name);
    if (found != watch->launches.end()) {
        found->second->count++;
        return nullptr;
    }
    if (watch->launches.size() >= MOST) {
        watch->others++;
        return nullptr;
    }
    auto launch = std::make_shared<Launch>();
    launch->count = 1;
    try {
        keep_launch(*launch, c, waits, copied);
    } catch (const Trouble &trouble) {
        launch->trouble = trouble.what;
        launch->own.release();
    }
    watch->launches.emplace(name, launch);
    watch->stopped.add(since(began));
    return launch;
}

bool in_order(const Queue &queue) {
    for (size_t i = 0; i + 1 < queue.properties.size(); i += 2)
        if (queue.properties[i] == CL_QUEUE_PROPERTIES)
            return !(queue.properties[i + 1] & CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE);
    return true;
}

__attribute__((noinline)) cl_int launch_watched(const Command &c, const Waits &waits, cl_event *made) {
    std::vector<cl_event> copied;
    auto launch = note_launch(c, waits, copied);
    cl_event done = nullptr;
    std::vector<cl_event> all(waits.list, waits.list + waits.count);
    if (!in_order(*c.queue)) all.insert(all.end(), copied.begin(), copied.end());
    cl_int error = target->clEnqueueNDRangeKernel(real_of(c.queue), real_of(c.kernel), c.dimensions, c.offset,
                                                  c.global, c.local, cl_uint(all.size()),
                                                  all.empty() ? nullptr : all.data(), launch ? &done : made);
    for (cl_event one : copied) target->clReleaseEvent(one);
    if (!done) return error;
    if (made && target->clRetainEvent(done) == CL_SUCCESS) *made = done;
    launch->done = done;
    return error;
}

std::vector<std::string> texts(const std::vector<double> &values) {
    std::vector<std::string> all;
    for (double value : values) {
        char digits[40];
        snprintf(digits, sizeof(digits), "%.9g", value);
        all.push_back(digits);
    }
    return all;
}

std::string kernel_json(const Launch &launch, const Replay &done) {
    auto sizes = [&](const size_t *of) { return texts({of, of + launch.dimensions}); };
    return Json()
        .text("name", launch.name)
        .list("global_size", sizes(launch.global))
        .list("local_size", launch.has_local ? sizes(launch.local) : std::vector<std::string>())
        .number("launches", double(launch.count))
        .number("bytes", double(launch.bytes))
        .list("source_s", texts(done.source_s))
        .list("target_s", texts(done.target_s))
        .number("source_call_s", done.source_call_s)
        .number("target_call_s", done.target_call_s)
        .number("compared_bytes", double(done.compared))
        .number("differing_bytes", double(done.differing))
        .seconds("relative_difference", done.relative)
        .text("types", done.types)
        .text("trouble", launch.trouble)
        .end();
}

} // namespace

Watching::Watching(size_t allowed) {
    found.allowed = allowed;
    std::lock_guard<std::mutex> guard(watch_lock);
    watch = &found;
    watching = true;
}

void Watching::wait(Clock::time_point until, const Progress &progress) {
    while (Clock::now() < until && !is_exiting()) {
        progress("");
        std::this_thread::sleep_until(std::min(until, Clock::now() + std::chrono::milliseconds(20)));
    }
}

void Watching::end() {
    watching = false;
    std::lock_guard<std::mutex> guard(watch_lock);
    watch = nullptr;
}

size_t memory_allowed(const Candidate &place) {
    cl_ulong least = 0;
    for (auto device : {place.device, real_of(the_device())}) {
        cl_ulong bytes = 0;
        target->clGetDeviceInfo(device, CL_DEVICE_GLOBAL_MEM_SIZE, sizeof(bytes), &bytes, nullptr);
        least = least ? std::min(least, bytes) : bytes;
    }
    return size_t(least / 8);
}

std::string try_on(const std::string &key, double watch_s, size_t asked_mib, const Progress &progress) {
    size_t candidate;
    auto alone = keep_moves_away(key, &candidate);
    steps = 0;
    if (candidate == current_candidate()) throw Trouble{"the program is on " + key + " already"};
    const Candidate &place = candidates()[candidate];
    Watching watched(asked_mib ? asked_mib << 20 : memory_allowed(place));
    auto began = Clock::now();
    progress("watching the program for " + texts({watch_s})[0] + " s");
    watched.wait(after(began, watch_s), progress);
    watched.end();
    double watched_s = since(began) - watched.found.stopped.total_s;
    if (watched.found.launches.empty())
        throw Trouble{"the program has launched no kernel meanwhile; watch it for longer", true};
    Target there(place);
    std::vector<std::string> kernels;
    for (auto &[name, launch] : watched.found.launches) {
        if (is_exiting()) throw Trouble{"the program ends"};
        progress("trying " + launch->name + " on " + key + ", " + std::to_string(kernels.size() + 1) + " of " +
                 std::to_string(watched.found.launches.size()));
        Replay done;
        try {
            if (launch->trouble.empty() && !has_ended(*launch, after(Clock::now(), PATIENCE_S)))
                throw Trouble{"the program's own launch has not ended"};
            if (launch->trouble.empty()) done = replay(*launch, there, watched.found.stopped, progress);
        } catch (const Trouble &trouble) {
            launch->trouble = trouble.what;
            done = Replay();
        }
        kernels.push_back(kernel_json(*launch, done));
    }
    return Json()
        .text("device", candidates()[current_candidate()].key)
        .text("on", key)
        .number("watched_s", watched_s)
        .number("stopped_s", watched.found.stopped.total_s)
        .number("longest_stop_s", watched.found.stopped.longest_s)
        .number("not_kept", double(watched.found.others))
        .number("steps", steps)
        .list("kernels", kernels)
        .end();
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
    Waits waits(given, handles);
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
