/* What is made of a move while the program runs: contexts, programs, and copies of its memory.
 *
 * Contents are copied in rounds. At the closed gate a round takes the memory that was written since it was last
 * copied, calls it clean, and puts markers behind all work. With the gate open it waits for the markers and copies.
 * So work from before is in the copy, and all later work calls what it writes dirty again. */
#include <algorithm>
#include <thread>

#include "move.h"

namespace tenbin {

namespace {

constexpr int ROUNDS = 2, TURNS = 20; /* TURNS: tries to find no user event unset */
constexpr double TOO_MUCH = 0.8;                  /* part of all memory: another round would gain nothing */
constexpr double ENOUGH_BYTES = double(64 << 20); /* to time a copy by */

bool is_mapped_for_writing(const Memory &memory) {
    for (auto &mapping : memory.mappings)
        if (mapping.flags & (CL_MAP_WRITE | CL_MAP_WRITE_INVALIDATE_REGION)) return true;
    return false;
}

double sum_bytes(const std::vector<Memory *> &memories) {
    double sum = 0;
    for (const Memory *memory : memories) sum += double(bytes_of(*memory));
    return sum;
}

/* A context on any other device may hold memory there. */
bool is_processor(size_t candidate) {
    cl_device_type type = 0;
    target->clGetDeviceInfo(candidates()[candidate].device, CL_DEVICE_TYPE, sizeof(type), &type, nullptr);
    return type & CL_DEVICE_TYPE_CPU;
}

bool is_built(const Program &program) {
    return program.recipe && (program.from_binary || program.status == CL_BUILD_SUCCESS);
}

} // namespace

Program::~Program() {
    if (left.real) release_real(kind, left.real);
}

Replaced keep_left() {
    Replaced unused;
    size_t candidate = current_candidate();
    if (!is_processor(candidate)) return unused;
    auto keep = [&](auto &object, bool wanted) {
        if (object.left.real) unused.list.emplace_back(object.kind, object.left.real);
        object.left = {wanted ? std::exchange(object.real, nullptr) : nullptr, candidate};
    };
    for_each<Program>([&](Program &program) {
        keep(program, is_built(program));
        program.left_recipe = program.recipe;
    });
    for_each<Context>([&](Context &context) { keep(context, true); });
    return unused;
}

void check_group(cl_program made, const std::string &name, size_t used, const Candidate &place) {
    cl_int error;
    cl_kernel kernel = used > 1 ? target->clCreateKernel(made, name.c_str(), &error) : nullptr;
    if (!kernel) return; /* of an earlier build */
    size_t most = 0;
    error = target->clGetKernelWorkGroupInfo(kernel, place.device, CL_KERNEL_WORK_GROUP_SIZE, sizeof(most), &most,
                                             nullptr);
    target->clReleaseKernel(kernel);
    if (error == CL_SUCCESS && used > most)
        throw Trouble{"kernel " + name + " is launched by groups of " + std::to_string(used) + ", " + place.key +
                      " takes " + std::to_string(most) + " at most"};
}

Prepared::Prepared(size_t where) : candidate(where) {}

void Prepared::release() {
    from.release();
    to.release();
    for (auto &[recipe, program] : programs) target->clReleaseProgram(program);
    programs.clear();
    for (auto &[memory, real] : memories)
        if (real) target->clReleaseMemObject(std::exchange(real, nullptr));
    for (auto &[context, real] : contexts)
        if (real) target->clReleaseContext(std::exchange(real, nullptr));
}

Prepared::~Prepared() {
    release();
    if (contexts.empty()) return; /* nothing is held: the gate may be closed */
    Inside inside;
    for (auto &[memory, real] : memories) drop(memory->slot);
    for (auto &[context, real] : contexts) drop(context->slot);
}

/* Programs without a build are made anew as quickly. */
void Prepared::keep() {
    if (!is_processor(candidate)) return;
    for_each<Context>([&](Context &context) {
        if (hold(context.slot)) contexts[&context] = static_cast<cl_context>(std::exchange(context.real, nullptr));
    });
    for_each<Program>([&](Program &program) {
        if (is_built(program) && !programs.count(program.recipe))
            programs[program.recipe] = static_cast<cl_program>(std::exchange(program.real, nullptr));
    });
}

/* A build that fails is left out here, and fails again where that can be told. */
void Prepared::build() {
    for_each<Program>([&](Program &program) {
        cl_int error;
        if (!program.recipe || programs.count(program.recipe)) return;
        cl_program made = make_program(*program.recipe, next_of(program.context.get()), candidates()[candidate].device,
                                       &error);
        if (error == CL_SUCCESS) programs[program.recipe] = made;
    });
}

void Prepared::check_groups() {
    struct Group {
        cl_program program;
        std::string kernel;
        size_t items;
    };
    std::vector<Group> used;
    {
        Closed gate;
        for_each<Program>([&](Program &program) {
            cl_program made = find(program.recipe);
            for (auto &[kernel, items] : program.groups)
                if (made) used.push_back({made, kernel, items});
        });
    }
    for (const Group &group : used) check_group(group.program, group.kernel, group.items, candidates()[candidate]);
}

/* What is compiled here is not compiled in the pause. */
void Prepared::make() {
    auto began = Clock::now();
    std::vector<std::pair<Context *, RecipePointer>> wanted;
    {
        Closed gate;
        for_each<Context>([&](Context &context) {
            if (!contexts.count(&context) && hold(context.slot))
                contexts[&context] = static_cast<cl_context>(context.left.take(candidate));
        });
        for_each<Program>([&](Program &program) {
            Context *context = program.context.get();
            if (!program.recipe || !contexts.count(context) || programs.count(program.recipe)) return;
            void *left = program.recipe == program.left_recipe ? program.left.take(candidate) : nullptr;
            if (left)
                programs[program.recipe] = static_cast<cl_program>(left);
            else
                wanted.emplace_back(context, program.recipe);
        });
    }
    const Candidate &place = candidates()[candidate];
    cl_int error;
    for (auto &[context, real] : contexts) {
        if (real) continue;
        cl_context made = context->make(place, &error);
        if (error == CL_SUCCESS) real = made;
        step(error, "make a context");
    }
    for (auto &[context, recipe] : wanted) {
        cl_program made = make_program(*recipe, contexts[context], place.device, &error);
        if (error == CL_SUCCESS) programs[recipe] = made;
        step(error, "build a program");
    }
    check_groups();
    found.prepare_s += since(began);
}

Markers::~Markers() {
    for (cl_event one : list) target->clReleaseEvent(one);
}

void Markers::wait() const {
    for (cl_event one : list) target->clWaitForEvents(1, &one);
}

/* Those first for whose commands it waits: the flush of a driver may wait for that of theirs. */
static void flush(Queue *queue, std::set<Queue *> &left) {
    if (!left.erase(queue)) return;
    for (Queue *other : std::exchange(queue->behind, {})) flush(other, left);
    target->clFlush(real_of(queue));
}

bool mark_queues(std::vector<cl_event> &before) {
    if (has_unset_event()) return false; /* markers might wait for it */
    std::set<Queue *> left;
    for_each<Queue>([&](Queue &queue) {
        cl_event marker = nullptr;
        cl_int error = target->clEnqueueMarkerWithWaitList(real_of(&queue), 0, nullptr, &marker);
        if (error == CL_SUCCESS) before.push_back(marker);
        step(error, "mark the end of a queue");
        left.insert(&queue);
    });
    while (!left.empty()) flush(*left.begin(), left);
    leftover_events(before);
    return true;
}

/* Memory that the host may write to at any time is not copied here, and mapped memory stays dirty. */
bool Prepared::begin_round(std::vector<Memory *> &wanted, std::vector<cl_event> &before) {
    Closed gate;
    if (!mark_queues(before)) return false;
    for_each<Memory>([&](Memory &memory) {
        if (memory.parent || memory.host || !contexts.count(memory.context.get())) return;
        bool is_new = !memories.count(&memory);
        if (is_new ? !hold(memory.slot) : !memory.dirty) return;
        memories.emplace(&memory, nullptr);
        wanted.push_back(&memory);
        memory.dirty = is_mapped_for_writing(memory);
    });
    round_began = Clock::now();
    return true;
}

/* Give the bytes a second. */
double Prepared::copy_all(const std::vector<Memory *> &wanted, double enough_bytes) {
    auto began = Clock::now();
    double bytes = 0;
    for (Memory *memory : wanted) {
        if (bytes >= enough_bytes) break;
        Context *context = memory->context.get();
        cl_mem &next = memories[memory];
        cl_command_queue queue = to.of(context, contexts[context], candidates()[candidate].device);
        if (!next) {
            cl_int error;
            cl_mem made = make_memory(*memory, contexts[context], nullptr, &error);
            if (error == CL_SUCCESS) next = made;
            step(error, "make device memory");
            touch_new(*memory, next, queue);
        }
        load_from_device(*memory, next, from.of(context, real_of(context), real_of(the_device())), queue);
        bytes += double(bytes_of(*memory));
    }
    return bytes / std::max(since(began), 1e-9);
}

std::vector<Memory *> Prepared::dirty_ones() const {
    std::vector<Memory *> dirty;
    for (auto &[memory, real] : memories)
        if (memory->dirty) dirty.push_back(memory);
    return dirty;
}

/* A second round takes what was written during the first, which was long. Where a program writes to all of its
 * memory, the first round has spared the pause at least the making and the first touch of the new memory. */
void Prepared::copy() {
    auto began = Clock::now();
    for (int round = 0; round < ROUNDS; round++) {
        if (round && found.dirty_bytes > TOO_MUCH * found.bytes) {
            found.bytes_per_s = copy_all(dirty_ones(), ENOUGH_BYTES);
            break;
        }
        std::vector<Memory *> wanted;
        Markers before;
        bool has_begun = begin_round(wanted, before.list);
        for (int turn = 0; !has_begun && turn < TURNS; turn++) {
            std::this_thread::sleep_for(std::chrono::milliseconds(5));
            has_begun = begin_round(wanted, before.list);
        }
        if (!has_begun) break;
        before.wait();
        found.drain_s = since(round_began); /* the pause, too, begins when a round has ended */
        if (wanted.empty()) break;
        found.bytes_per_s = copy_all(wanted, 1e300);
        if (!round) found.bytes = sum_bytes(wanted);
        found.dirty_bytes = sum_bytes(dirty_ones());
    }
    found.copy_s += since(began);
}

Estimate Prepared::estimate() const {
    Estimate now = found;
    now.dirty_bytes = sum_bytes(dirty_ones());
    now.dirty_s = memories.empty() ? 0 : since(round_began);
    return now;
}

cl_context Prepared::take(Context *context) {
    auto made = contexts.find(context);
    return made == contexts.end() ? nullptr : std::exchange(made->second, nullptr);
}

cl_program Prepared::take(const RecipePointer &recipe) {
    auto made = programs.find(recipe);
    if (made == programs.end()) return nullptr;
    cl_program program = made->second;
    programs.erase(made);
    return program;
}

cl_program Prepared::find(const RecipePointer &recipe) const {
    auto made = programs.find(recipe);
    return made == programs.end() ? nullptr : made->second;
}

cl_mem Prepared::take(Memory *memory) {
    auto made = memories.find(memory);
    return made == memories.end() ? nullptr : std::exchange(made->second, nullptr);
}

} // namespace tenbin
