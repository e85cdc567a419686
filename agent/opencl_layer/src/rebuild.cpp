/* All objects of the program made anew on another device, in the order in which they rest on each other. */
#include <signal.h>

#include <algorithm>

#include "move.h"

namespace tenbin {

int steps, fail_at;

void step(cl_int error, const char *what) {
    if (error != CL_SUCCESS)
        throw Trouble{std::string("cannot ") + what + " (OpenCL error " + std::to_string(error) + ")"};
    if (++steps == -fail_at) raise(SIGKILL);
    if (steps == fail_at) throw Trouble{std::string("injected failure: ") + what};
}

Prepared::Prepared(size_t where) : candidate(where) {}

Prepared::~Prepared() {
    if (contexts.empty()) return; /* never made: the gate may be closed */
    Inside inside;
    for (auto &[recipe, program] : programs) target->clReleaseProgram(program);
    for (auto &[context, real] : contexts) {
        if (real) target->clReleaseContext(real);
        drop(context->slot);
    }
}

/* What is compiled here is not compiled in the pause. */
void Prepared::make() {
    std::vector<std::pair<Context *, RecipePointer>> wanted;
    close_gate();
    for_each<Context>([&](Context &context) {
        if (hold(context.slot)) contexts[&context] = nullptr;
    });
    for_each<Program>([&](Program &program) {
        Context *context = program.context.get();
        if (program.recipe && contexts.count(context)) wanted.emplace_back(context, program.recipe);
    });
    open_gate();
    const Candidate &place = candidates()[candidate];
    cl_int error;
    for (auto &[context, real] : contexts) {
        cl_context made = context->make(place, &error);
        if (error == CL_SUCCESS) real = made;
        step(error, "make a context");
    }
    for (auto &[context, recipe] : wanted) {
        cl_program made = make_program(*recipe, contexts[context], place.device, &error);
        if (error == CL_SUCCESS) programs[recipe] = made;
        step(error, "build a program");
    }
}

cl_context Prepared::take(Context *context) {
    auto found = contexts.find(context);
    return found == contexts.end() ? nullptr : std::exchange(found->second, nullptr);
}

cl_program Prepared::take(const RecipePointer &recipe) {
    auto found = programs.find(recipe);
    if (found == programs.end()) return nullptr;
    cl_program made = found->second;
    programs.erase(found);
    return made;
}

void drain() {
    if (is_busy()) throw Trouble{"a program is being built", true};
    for_each<Event>([](Event &event) {
        if (event.user && !event.recorded && event.awaited && event.user_status > CL_COMPLETE)
            throw Trouble{"a user event that others wait for is not set", true};
    });
    for_each<Memory>([](Memory &memory) {
        if (!memory.host) return;
        for (auto &mapping : memory.mappings)
            if (mapping.flags & (CL_MAP_WRITE | CL_MAP_WRITE_INVALIDATE_REGION))
                throw Trouble{"a buffer in the program's own memory is mapped for writing", true};
    });
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

static cl_mem make_memory(const Memory &memory, cl_int *error) {
    constexpr cl_mem_flags FOR_LAYER =
        CL_MEM_COPY_HOST_PTR | CL_MEM_HOST_WRITE_ONLY | CL_MEM_HOST_READ_ONLY | CL_MEM_HOST_NO_ACCESS;
    cl_mem_flags flags = memory.flags & ~FOR_LAYER;
    cl_context context = next_of(memory.context.get());
    if (memory.image) {
        cl_image_desc about = memory.description;
        about.mem_object = next_of(memory.parent.get());
        if (!memory.host && !memory.parent) about.image_row_pitch = about.image_slice_pitch = 0;
        return target->clCreateImage(context, flags, &memory.format, &about, memory.host, error);
    }
    if (!memory.parent) return target->clCreateBuffer(context, flags, memory.size, memory.host, error);
    flags &= CL_MEM_READ_WRITE | CL_MEM_READ_ONLY | CL_MEM_WRITE_ONLY;
    cl_buffer_region region{memory.origin, memory.size};
    return target->clCreateSubBuffer(next_of(memory.parent.get()), flags, CL_BUFFER_CREATE_TYPE_REGION, &region,
                                     error);
}

static void make_memories(const Candidate &place, CopyQueues &from, CopyQueues &to, Store *store) {
    cl_int error = CL_SUCCESS;
    cl_device_id old_device = real_of(the_device());
    for_each<Memory>([&](Memory &memory) {
        if (memory.parent) return;
        note_next(memory, make_memory(memory, &error), error, "make device memory");
        Context *context = memory.context.get();
        cl_command_queue queue = to.of(context, next_of(context), place.device);
        if (store)
            load_from_store(memory, *store, queue);
        else
            load_from_device(memory, from.of(context, real_of(context), old_device), queue);
    });
    for (bool images : {false, true}) /* an image may be a view of a sub-buffer */
        for_each<Memory>([&](Memory &memory) {
            if (memory.parent && memory.image == images)
                note_next(memory, make_memory(memory, &error), error, "make a part of device memory");
        });
}

static void make_programs(Prepared &prepared, const Candidate &place) {
    cl_int error = CL_SUCCESS;
    for_each<Program>([&](Program &program) {
        cl_program made = prepared.take(program.recipe);
        if (!made) made = make_program(*program.recipe, next_of(program.context.get()), place.device, &error);
        note_next(program, made, error, "build a program");
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

void make_next(Prepared &prepared, CopyQueues &from, CopyQueues &to, Store *store) {
    const Candidate &place = candidates()[prepared.candidate];
    cl_int error = CL_SUCCESS;
    for_each<Context>([&](Context &context) {
        cl_context made = prepared.take(&context);
        if (!made) made = context.make(place, &error);
        note_next(context, made, error, "make a context");
    });
    make_memories(place, from, to, store);
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
