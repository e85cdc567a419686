/* All objects of the program made anew on another device, in the order in which they rest on each other. */
#include <signal.h>

#include <algorithm>
#include <future>
#include <system_error>

#include "move.h"

namespace tenbin {

std::atomic<int> steps{0}, fail_at{0};

void step(cl_int error, const char *what) {
    bool full = error == CL_MEM_OBJECT_ALLOCATION_FAILURE || error == CL_OUT_OF_RESOURCES ||
                error == CL_OUT_OF_HOST_MEMORY || error == CL_INVALID_BUFFER_SIZE;
    if (error != CL_SUCCESS)
        throw Trouble{std::string("cannot ") + what + " (OpenCL error " + std::to_string(error) + ")", false,
                      full ? "device-memory" : ""};
    int now = ++steps;
    if (now == -fail_at) ::raise(SIGKILL);
    if (now == fail_at) throw Trouble{std::string("injected failure: ") + what};
}

bool has_unset_event() {
    bool found = false;
    for_each<Event>([&](Event &event) {
        found |= event.user && !event.recorded && event.awaited && event.user_status > CL_COMPLETE;
    });
    return found;
}

void drain() {
    if (is_busy()) throw Trouble{"a program is being built", true};
    if (has_unset_event()) throw Trouble{"a user event that others wait for is not set", true};
    for_each<Memory>([](Memory &memory) {
        if (!memory.host) return;
        for (auto &mapping : memory.mappings)
            if (mapping.flags & (CL_MAP_WRITE | CL_MAP_WRITE_INVALIDATE_REGION))
                throw Trouble{"a buffer in the program's own memory is mapped for writing", true};
    });
    Markers all;
    mark_queues(all.list);
    all.wait();
    for_each<Queue>([](Queue &queue) { step(target->clFinish(real_of(&queue)), "finish a queue"); });
    reap_queues(true);
    for_each<Event>([](Event &event) {
        cl_event real = real_of(&event);
        if (!event.user && !event.recorded && event.state() > CL_COMPLETE) target->clWaitForEvents(1, &real);
    });
}

/* A successor is noted before its step is counted, so that `undo` knows it. */
template <class T> static void note_next(T &object, void *made, cl_int error, const char *what) {
    if (error == CL_SUCCESS) object.next = made;
    step(error, what);
}

cl_mem make_memory(const Memory &memory, cl_context context, cl_mem parent, cl_int *error) {
    constexpr cl_mem_flags FOR_LAYER =
        CL_MEM_COPY_HOST_PTR | CL_MEM_HOST_WRITE_ONLY | CL_MEM_HOST_READ_ONLY | CL_MEM_HOST_NO_ACCESS;
    cl_mem_flags flags = memory.flags & ~FOR_LAYER;
    if (memory.image) {
        cl_image_desc about = memory.description;
        about.mem_object = parent;
        if (!memory.host && !memory.parent) about.image_row_pitch = about.image_slice_pitch = 0;
        return target->clCreateImage(context, flags, &memory.format, &about, memory.host, error);
    }
    if (!memory.parent) return target->clCreateBuffer(context, flags, memory.size, memory.host, error);
    flags &= CL_MEM_READ_WRITE | CL_MEM_READ_ONLY | CL_MEM_WRITE_ONLY;
    cl_buffer_region region{memory.origin, memory.size};
    return target->clCreateSubBuffer(parent, flags, CL_BUFFER_CREATE_TYPE_REGION, &region, error);
}

/* Contents that were copied while the program ran, and not written since, are there already. */
static void make_memories(Prepared &prepared, const Candidate &place, Store *store) {
    cl_int error = CL_SUCCESS;
    cl_device_id old_device = real_of(the_device());
    for_each<Memory>([&](Memory &memory) {
        if (memory.parent) return;
        Context *context = memory.context.get();
        cl_mem made = prepared.take(&memory);
        bool is_copied = made && !memory.dirty;
        bool is_new = !made;
        if (is_new) made = make_memory(memory, next_of(context), nullptr, &error);
        note_next(memory, made, error, "make device memory");
        if (is_copied) return;
        cl_command_queue queue = prepared.to.of(context, next_of(context), place.device);
        if (is_new && !store) touch_new(memory, made, queue);
        if (store)
            load_from_store(memory, *store, queue);
        else
            load_from_device(memory, made, prepared.from.of(context, real_of(context), old_device), queue);
    });
    for (bool images : {false, true}) /* an image may be a view of a sub-buffer */
        for_each<Memory>([&](Memory &memory) {
            if (!memory.parent || memory.image != images) return;
            cl_context context = next_of(memory.context.get());
            cl_mem made = make_memory(memory, context, next_of(memory.parent.get()), &error);
            note_next(memory, made, error, "make a part of device memory");
        });
}

static void make_programs(Prepared &prepared, const Candidate &place) {
    cl_int error = CL_SUCCESS;
    for_each<Program>([&](Program &program) {
        cl_program made = prepared.take(program.recipe);
        if (!made) made = make_program(*program.recipe, next_of(program.context.get()), place.device, &error);
        note_next(program, made, error, "build a program");
        for (auto &[kernel, items] : program.groups) check_group(made, kernel, items, place);
    });
    for_each<Kernel>([&](Kernel &kernel) {
        cl_kernel made = target->clCreateKernel(next_of(kernel.program.get()), kernel.name.c_str(), &error);
        note_next(kernel, made, error, "make a kernel");
        step(set_arguments(kernel), "set the arguments of a kernel");
    });
}

static void make_queues(const Candidate &place) {
    cl_int error = CL_SUCCESS;
    for_each<Queue>([&](Queue &queue) {
        const cl_queue_properties *list = queue.properties.empty() ? nullptr : queue.properties.data();
        cl_command_queue made = target->clCreateCommandQueueWithProperties(next_of(queue.context.get()),
                                                                           place.device, list, &error);
        note_next(queue, made, error, "make a queue");
    });
}

/* Events that are not set yet, and failed ones, which fail whatever waits for them. */
static void make_events() {
    for_each<Event>([&](Event &event) {
        cl_int state = event.state(), error = CL_SUCCESS;
        if (state == CL_COMPLETE) return;
        cl_event made = target->clCreateUserEvent(next_of(event.context.get()), &error);
        note_next(event, made, error, "make an event");
        if (state < 0) step(target->clSetUserEventStatus(made, state), "set an event");
    });
}

void make_next(Prepared &prepared, Store *store, const WarmUp *warm_up) {
    const Candidate &place = candidates()[prepared.candidate];
    cl_int error = CL_SUCCESS;
    for_each<Context>([&](Context &context) {
        cl_context made = prepared.take(&context);
        if (!made) made = context.make(place, &error);
        note_next(context, made, error, "make a context");
    });
    std::future<void> building; /* the end of this function waits for it */
    try {
        if (store)
            building = std::async(std::launch::async, [&] {
                prepared.build();
                if (warm_up) warm_up->run(prepared);
            });
    } catch (const std::system_error &) { /* no more threads: they are built later */
    }
    make_memories(prepared, place, store);
    if (building.valid()) building.get();
    for_each<Sampler>([&](Sampler &s) {
        cl_context context = next_of(s.context.get());
        cl_sampler made = target->clCreateSampler(context, s.normalized, s.addressing, s.filter, &error);
        note_next(s, made, error, "make a sampler");
    });
    make_programs(prepared, place);
    make_queues(place);
    make_events();
}

/* Every object of every kind, those first that rest on others. */
template <class Function> static void for_all(Function function) {
    for_each<Event>(function);
    for_each<Kernel>(function);
    for_each<Program>(function);
    for_each<Sampler>(function);
    for_each<Queue>(function);
    for_each<Memory>(function);
    for_each<Context>(function);
}

void undo() {
    for_all([](auto &object) {
        if (object.next) release_real(object.kind, std::exchange(object.next, nullptr));
    });
}

void record_events() {
    for_each<Event>([](Event &event) {
        cl_int state = event.state();
        if (event.recorded || (event.user && state > CL_COMPLETE)) return;
        if (!event.type)
            target->clGetEventInfo(real_of(&event), CL_EVENT_COMMAND_TYPE, sizeof(event.type), &event.type, nullptr);
        event.times_error = CL_SUCCESS;
        for (cl_uint i = 0; i < 5 && event.times_error == CL_SUCCESS; i++) {
            cl_int error = target->clGetEventProfilingInfo(real_of(&event), CL_PROFILING_COMMAND_QUEUED + i,
                                                           sizeof(cl_ulong), &event.times[i], nullptr);
            if (error != CL_SUCCESS && i == 4)
                event.times[4] = event.times[3]; /* OpenCL 1: no time of completion */
            else
                event.times_error = error;
        }
        event.status = state;
        event.recorded = true;
        event.tell_all();
    });
}

void keep_mappings(CopyQueues &from) {
    cl_device_id device = real_of(the_device());
    for_each<Memory>([&](Memory &memory) {
        std::shared_ptr<Former> former;
        for (auto &mapping : memory.mappings) {
            if (mapping.former) continue;
            if (!former) {
                Context *context = memory.context.get();
                cl_command_queue queue = from.of(context, real_of(context), device);
                target->clRetainMemObject(real_of(&memory));
                target->clRetainCommandQueue(queue);
                former = std::make_shared<Former>(real_of(&memory), queue);
            }
            mapping.former = former;
        }
    });
}

Replaced detach() {
    Replaced replaced;
    for_all([&](auto &object) {
        if (object.real) replaced.list.emplace_back(object.kind, object.real);
        object.real = std::exchange(object.next, nullptr);
    });
    return replaced;
}

Replaced commit(size_t candidate) {
    set_current(candidate);
    return detach();
}

void Replaced::release() {
    for (auto &[kind, real] : list) release_real(kind, real);
    list.clear();
}

} // namespace tenbin
