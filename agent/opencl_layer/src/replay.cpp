/* A launch that was kept, run again on the device that the program is on and on another: times and results. */
#include <math.h>
#include <time.h>

#include "trial.h"

namespace tenbin {

namespace {

constexpr size_t TIMES = 9, LEAST_TIMES = 3, AT_ONCE = 3; /* launches; those in one stop */
constexpr double ENOUGH_S = 1.0;                          /* of timed launches of one kernel on one device */
constexpr double BRIEF_S = 0.1; /* a launch that takes longer needs no warm-up at each stop */

const Progress &nobody = *new Progress([](const std::string &) {});

/* One device: what the kernel reads and writes there, and a copy of it as it was before the launch. */
struct Side {
    Own own;
    const Progress &progress;
    explicit Side(const Progress &asked) : progress(asked) {}
    cl_context context = nullptr;
    cl_command_queue queue = nullptr;
    cl_kernel kernel = nullptr;
    std::vector<cl_mem> kept, used;
};

void make_queue(Side &side, cl_device_id device) {
    cl_int error;
    cl_command_queue made = target->clCreateCommandQueue(side.context, device, 0, &error);
    side.queue = side.own.keep(Kind::queue, made, error, "make a queue for a trial");
}

void copy_part(const Side &side, const Part &part, cl_mem from, cl_mem to) {
    for (const Piece &p : part.pieces)
        step(part.image ? target->clEnqueueCopyImage(side.queue, from, to, p.origin, p.origin, p.region, 0, nullptr,
                                                     nullptr)
                        : target->clEnqueueCopyBuffer(side.queue, from, to, p.origin[0], p.origin[0], p.bytes, 0,
                                                      nullptr, nullptr),
             "copy what a launch reads");
}

void read_part(const Side &side, const Part &part, const Piece &p, cl_mem from, std::vector<char> &to) {
    to.resize(p.bytes);
    step(part.image ? target->clEnqueueReadImage(side.queue, from, CL_TRUE, p.origin, p.region, 0, 0, to.data(), 0,
                                                 nullptr, nullptr)
                    : target->clEnqueueReadBuffer(side.queue, from, CL_TRUE, p.origin[0], p.bytes, to.data(), 0,
                                                  nullptr, nullptr),
         "read the memory of a trial");
}

void write_part(const Side &side, const Part &part, const Piece &p, cl_mem to, const std::vector<char> &from) {
    step(part.image ? target->clEnqueueWriteImage(side.queue, to, CL_TRUE, p.origin, p.region, 0, 0, from.data(), 0,
                                                  nullptr, nullptr)
                    : target->clEnqueueWriteBuffer(side.queue, to, CL_TRUE, p.origin[0], p.bytes, from.data(), 0,
                                                   nullptr, nullptr),
         "write the memory of a trial");
}

/* Memory to work on, parts of it, and the arguments of the kernel. */
void set_up(Side &side, const Launch &launch) {
    cl_int error;
    for (const Part &part : launch.parts) {
        cl_mem parent = part.parent < 0 ? nullptr : side.used[size_t(part.parent)];
        cl_mem made = make_part(side.context, part, parent, &error);
        side.used.push_back(side.own.keep(Kind::memory, made, error, "make device memory for a trial"));
        if (part.parent < 0) copy_part(side, part, side.kept[side.used.size() - 1], made);
    }
    for (cl_uint i = 0; i < launch.arguments.size(); i++) {
        const Given &given = launch.arguments[i];
        if (!given.set) continue;
        void *object = given.part >= 0 ? side.used[size_t(given.part)] : nullptr;
        if (given.sampler) {
            cl_sampler made =
                target->clCreateSampler(side.context, given.normalized, given.addressing, given.filter, &error);
            object = side.own.keep(Kind::sampler, made, error, "make a sampler");
        }
        const void *value = given.bytes.empty() ? nullptr : given.bytes.data();
        if (object) value = &object;
        step(target->clSetKernelArg(side.kernel, i, given.size, value), "set the arguments of a kernel");
    }
    step(finish(side.queue), "copy what a launch reads");
}

/* Put back what the last launch has written. */
void restore(const Side &side, const Launch &launch) {
    for (size_t i = 0; i < launch.parts.size(); i++)
        if (launch.parts[i].parent < 0 && launch.parts[i].written)
            copy_part(side, launch.parts[i], side.kept[i], side.used[i]);
    step(finish(side.queue), "copy what a launch reads");
}

void enqueue(const Side &side, const Launch &launch, cl_event *event) {
    step(target->clEnqueueNDRangeKernel(side.queue, side.kernel, launch.dimensions,
                                        launch.has_offset ? launch.offset : nullptr, launch.global,
                                        launch.has_local ? launch.local : nullptr, 0, nullptr, event),
         "launch a kernel in a trial");
}

double run_once(const Side &side, const Launch &launch) {
    if (is_exiting()) throw Trouble{"the program ends"};
    side.progress("");
    restore(side, launch);
    auto began = Clock::now();
    cl_event done = nullptr;
    enqueue(side, launch, &done);
    cl_int error = target->clWaitForEvents(1, &done);
    target->clReleaseEvent(done);
    step(error, "run a kernel in a trial");
    return since(began);
}

/* Time of a command that does nothing, which is part of the time of each launch. */
double time_of_call(const Side &side) {
    std::vector<double> took;
    for (int i = 0; i < 9; i++) {
        auto began = Clock::now();
        cl_event done = nullptr;
        if (target->clEnqueueMarkerWithWaitList(side.queue, 0, nullptr, &done) != CL_SUCCESS) return 0;
        target->clWaitForEvents(1, &done);
        target->clReleaseEvent(done);
        took.push_back(since(began));
    }
    std::sort(took.begin(), took.end());
    return took[took.size() / 2];
}

/* The program stands still, and its device has nothing to do. */
class Stop {
    Stopped &stopped;
    Clock::time_point began;

  public:
    explicit Stop(Stopped &sum) : stopped(sum) {
        auto first = Clock::now();
        for (;;) {
            began = Clock::now();
            close_gate();
            try {
                drain();
                return;
            } catch (const Trouble &trouble) {
                end();
                if (!trouble.passes || since(first) > PATIENCE_S || is_exiting()) throw;
            }
            timespec pause{0, 5000000};
            nanosleep(&pause, nullptr);
        }
    }
    void end() {
        open_gate();
        stopped.add(since(began));
    }
    ~Stop() { end(); }
};

bool is_enough(const std::vector<double> &took) {
    double sum = 0;
    for (double one : took) sum += one;
    return took.size() >= TIMES || (took.size() >= LEAST_TIMES && sum > ENOUGH_S);
}

void time_some(const Side &side, const Launch &launch, std::vector<double> &took, double expected_s) {
    if (expected_s < BRIEF_S) run_once(side, launch);
    for (size_t i = 0; i < AT_ONCE && !is_enough(took); i++) {
        took.push_back(run_once(side, launch));
        if (took.back() > BRIEF_S) return;
    }
}

/* In short stops on the device of the program; the other one meanwhile, if both are the same processor. */
void time_both(const Side &source, const Side &there, const Launch &launch, bool together, Replay &found,
               Stopped &stopped) {
    run_once(source, launch); /* both were warmed up by the comparison; this tells about how long one takes */
    double source_s = run_once(source, launch), target_s = run_once(there, launch);
    while (!is_enough(found.source_s) || (together && !is_enough(found.target_s))) {
        Stop stop(stopped);
        time_some(source, launch, found.source_s, source_s);
        if (together) time_some(there, launch, found.target_s, target_s);
    }
    while (!is_enough(found.target_s)) time_some(there, launch, found.target_s, target_s);
    found.source_call_s = time_of_call(source);
    found.target_call_s = time_of_call(there);
}

template <class T> void differ(const std::vector<char> &one, const std::vector<char> &other, double &relative) {
    for (size_t at = 0; at + sizeof(T) <= one.size(); at += sizeof(T)) {
        T a, b;
        memcpy(&a, &one[at], sizeof(T));
        memcpy(&b, &other[at], sizeof(T));
        if (memcmp(&a, &b, sizeof(T)) == 0 || (isnan(a) && isnan(b)) || a == b) continue;
        double difference = fabs(double(a) - double(b)), most = fmax(fabs(double(a)), fabs(double(b)));
        relative = fmax(relative, isfinite(difference) ? difference / most : 1e300);
    }
}

void compare(const Side &source, const Side &there, const Launch &launch, Replay &found) {
    std::vector<char> mine, its;
    for (size_t i = 0; i < launch.parts.size(); i++) {
        const Part &part = launch.parts[i];
        if (part.parent >= 0 || !part.written) continue;
        bool is_float = !part.image && part.type.compare(0, 5, "float") == 0;
        bool is_double = !part.image && part.type.compare(0, 6, "double") == 0;
        std::string type = is_float ? "float" : is_double ? "double" : "bytes";
        found.types = found.types.empty() || found.types == type ? type : "mixed";
        for (const Piece &p : part.pieces) {
            read_part(source, part, p, source.used[i], mine);
            read_part(there, part, p, there.used[i], its);
            found.compared += p.bytes;
            for (size_t at = 0; at < p.bytes; at++) found.differing += mine[at] != its[at];
            if (is_float) differ<float>(mine, its, found.relative);
            if (is_double) differ<double>(mine, its, found.relative);
        }
    }
}

bool is_cpu(cl_device_id device) {
    cl_device_type type = 0;
    target->clGetDeviceInfo(device, CL_DEVICE_TYPE, sizeof(type), &type, nullptr);
    return type & CL_DEVICE_TYPE_CPU;
}

} // namespace

cl_mem make_part(cl_context context, const Part &part, cl_mem parent, cl_int *error) {
    if (part.image) {
        cl_image_desc about = part.description;
        about.mem_object = parent;
        return target->clCreateImage(context, part.flags, &part.format, &about, nullptr, error);
    }
    if (!parent) return target->clCreateBuffer(context, part.flags, part.size, nullptr, error);
    cl_buffer_region region{part.origin, part.size};
    return target->clCreateSubBuffer(parent, part.flags, CL_BUFFER_CREATE_TYPE_REGION, &region, error);
}

bool has_ended(cl_event event, Clock::time_point until) {
    for (;;) {
        cl_int status = CL_QUEUED;
        target->clGetEventInfo(event, CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof(status), &status, nullptr);
        if (status <= CL_COMPLETE) return status == CL_COMPLETE;
        if (Clock::now() >= until || is_exiting()) return false;
        timespec pause{0, 1000000};
        nanosleep(&pause, nullptr);
    }
}

bool has_ended(const Launch &launch, Clock::time_point until) {
    return launch.done && has_ended(launch.done.load(), until);
}

void take_contents(Launch &launch, cl_device_id device) {
    Side side(nobody);
    side.context = launch.context;
    make_queue(side, device);
    for (Part &part : launch.parts) {
        if (part.parent >= 0) continue;
        part.contents.resize(part.pieces.size());
        for (size_t i = 0; i < part.pieces.size(); i++)
            read_part(side, part, part.pieces[i], part.kept, part.contents[i]);
    }
    launch.own.release();
    if (cl_event done = launch.done.exchange(nullptr)) target->clReleaseEvent(done); /* it holds its queue */
}

/* Run a launch once in the context of a program, from the contents that the program's own launch found. */
void run_first(const Launch &launch, cl_program program, cl_device_id device, Clock::time_point until) {
    auto side = std::make_unique<Side>(nobody);
    step(target->clGetProgramInfo(program, CL_PROGRAM_CONTEXT, sizeof(cl_context), &side->context, nullptr),
         "find the context of a program");
    make_queue(*side, device);
    cl_int error;
    cl_kernel kernel = target->clCreateKernel(program, launch.name.c_str(), &error);
    side->kernel = side->own.keep(Kind::kernel, kernel, error, "make a kernel");
    for (const Part &part : launch.parts) {
        side->kept.push_back(nullptr);
        if (part.parent >= 0) continue;
        cl_mem made = make_part(side->context, part, nullptr, &error);
        side->kept.back() = side->own.keep(Kind::memory, made, error, "make device memory for a copy");
        for (size_t i = 0; i < part.pieces.size(); i++)
            write_part(*side, part, part.pieces[i], made, part.contents[i]);
    }
    set_up(*side, launch);
    cl_event event = nullptr;
    enqueue(*side, launch, &event);
    target->clFlush(side->queue);
    bool ended = has_ended(event, until);
    target->clReleaseEvent(event);
    if (!ended) side.release(); /* what may run on for long needs its memory */
}

Target::Target(const Candidate &where) : place(where) {
    cl_context_properties list[] = {CL_CONTEXT_PLATFORM, reinterpret_cast<cl_context_properties>(place.platform), 0};
    cl_int error;
    cl_context made = target->clCreateContext(list, 1, &place.device, nullptr, nullptr, &error);
    context = own.keep(Kind::context, made, error, "make a context");
}

cl_program Target::build(const RecipePointer &recipe) {
    cl_program &made = programs[recipe];
    if (made) return made;
    cl_int error;
    cl_program built = make_program(*recipe, context, place.device, &error);
    return made = own.keep(Kind::program, built, error, "build a program");
}

Replay replay(const Launch &launch, Target &there, Stopped &stopped, const Progress &progress) {
    Side mine(progress), its(progress);
    cl_device_id here = real_of(the_device());
    mine.context = launch.context;
    mine.kernel = launch.kernel;
    its.context = there.context;
    make_queue(mine, here);
    make_queue(its, there.place.device);
    cl_int error;
    cl_kernel made = target->clCreateKernel(there.build(launch.recipe), launch.name.c_str(), &error);
    its.kernel = its.own.keep(Kind::kernel, made, error, "make a kernel");
    std::vector<char> staging;
    for (const Part &part : launch.parts) {
        mine.kept.push_back(part.kept);
        its.kept.push_back(nullptr);
        if (part.parent >= 0) continue;
        cl_mem copy = make_part(its.context, part, nullptr, &error);
        its.kept.back() = its.own.keep(Kind::memory, copy, error, "make device memory for a copy");
        for (const Piece &p : part.pieces) {
            read_part(mine, part, p, part.kept, staging);
            write_part(its, part, p, copy, staging);
        }
    }
    set_up(mine, launch);
    set_up(its, launch);
    run_once(mine, launch);
    run_once(its, launch);
    Replay found;
    compare(mine, its, launch, found);
    time_both(mine, its, launch, is_cpu(here) && is_cpu(there.place.device), found, stopped);
    return found;
}

} // namespace tenbin
