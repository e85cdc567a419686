/* Events, and the thread on which the program's callbacks run. */
#include <signal.h>
#include <unistd.h>

#include <condition_variable>
#include <deque>
#include <thread>

#include "objects.h"

namespace tenbin {

namespace {

std::mutex &work_lock = *new std::mutex;
std::condition_variable &work_there = *new std::condition_variable;
std::deque<std::function<void()>> &works = *new std::deque<std::function<void()>>;
pid_t worker_of = 0; /* the process whose thread works; a child of fork has none */

void work() {
    for (;;) {
        std::function<void()> next;
        {
            std::unique_lock<std::mutex> guard(work_lock);
            work_there.wait(guard, [] { return !works.empty(); });
            next = std::move(works.front());
            works.pop_front();
        }
        next();
    }
}

} // namespace

/* Driver threads call this. They must not wait at the gate, because the work of the device ends by them. */
void later(std::function<void()> one) {
    std::lock_guard<std::mutex> guard(work_lock);
    works.push_back(std::move(one));
    if (worker_of != getpid()) {
        sigset_t all, before;
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &before); /* signals are the program's own threads' */
        std::thread(work).detach();
        pthread_sigmask(SIG_SETMASK, &before, nullptr);
        worker_of = getpid();
    }
    work_there.notify_one();
}

void run_later(Callbacks &callbacks) {
    for (auto one = callbacks.rbegin(); one != callbacks.rend(); ++one) later(std::move(*one));
    callbacks.clear();
}

cl_int Event::state() const {
    if (recorded) return status;
    if (user) return user_status.load();
    cl_int now = CL_QUEUED;
    target->clGetEventInfo(real_of(this), CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof(now), &now, nullptr);
    return now;
}

Waits::Waits(cl_uint given, const cl_event *handles, Queue *queue) {
    if ((given == 0) != (handles == nullptr)) {
        error = CL_INVALID_EVENT_WAIT_LIST;
        return;
    }
    if (!given) return;
    cl_event *place = few;
    if (given > sizeof(few) / sizeof(few[0])) {
        many.resize(given);
        place = many.data();
    }
    for (cl_uint i = 0; i < given; i++) {
        Event *event = get<Event>(handles[i]);
        if (!event) {
            error = CL_INVALID_EVENT_WAIT_LIST;
            return;
        }
        if (event->user) event->awaited.store(true, std::memory_order_relaxed);
        if (event->real) place[count++] = real_of(event);
        if (queue && event->real && event->queue && event->queue.get() != queue) {
            std::lock_guard<std::mutex> guard(queue->lock);
            queue->behind.insert(event->queue.get());
        }
    }
    if (count) list = place;
}

Waits::~Waits() {
    if (done) target->clReleaseEvent(done);
}

void Waits::keep_meaning(cl_uint given, const Queue *queue) {
    if (!given || count || error) return;
    done = target->clCreateUserEvent(real_of(queue->context.get()), &error);
    if (error) return;
    target->clSetUserEventStatus(done, CL_COMPLETE);
    few[0] = done;
    list = few;
    count = 1;
}

cl_int finish_command(Inside &inside, Queue *queue, cl_int error, cl_event made, cl_event *event, bool blocking,
                      cl_command_type type) {
    if (error != CL_SUCCESS || !made) return error;
    if (event) {
        auto own = new Event;
        own->queue = Ref<Queue>(queue);
        own->context = queue->context;
        own->type = type;
        if (blocking) target->clRetainEvent(made);
        *event = wrap(own, made, &error);
    }
    if (blocking) {
        inside.leave();
        Awaiting end;
        cl_int waited = target->clWaitForEvents(1, &made);
        if (waited != CL_SUCCESS) error = waited;
    }
    if (blocking || !event) target->clReleaseEvent(made);
    return error;
}

cl_event CL_API_CALL layer_clCreateUserEvent(cl_context context, cl_int *error) {
    Inside inside;
    Context *own = get<Context>(context);
    if (!own) return refuse<cl_event>(error, CL_INVALID_CONTEXT);
    cl_int code;
    cl_event real = target->clCreateUserEvent(real_of(own), &code);
    if (error) *error = code;
    if (code != CL_SUCCESS) return nullptr;
    auto event = new Event;
    event->context = Ref<Context>(own);
    event->user = true;
    event->type = CL_COMMAND_USER;
    return wrap(event, real, error);
}

cl_int CL_API_CALL layer_clSetUserEventStatus(cl_event event, cl_int status) {
    {
        Inside inside;
        Event *own = get<Event>(event);
        if (!own || !own->user) return CL_INVALID_EVENT;
        if (status > CL_COMPLETE) return CL_INVALID_VALUE;
        cl_int before = CL_SUBMITTED;
        if (own->recorded || !own->user_status.compare_exchange_strong(before, status)) return CL_INVALID_OPERATION;
        cl_int error = target->clSetUserEventStatus(real_of(own), status);
        if (error != CL_SUCCESS) {
            own->user_status.store(CL_SUBMITTED);
            return error;
        }
    }
    user_event_set();
    return CL_SUCCESS;
}

cl_int CL_API_CALL layer_clWaitForEvents(cl_uint n, const cl_event *handles) {
    if (!n || !handles) return CL_INVALID_VALUE;
    Inside inside;
    cl_int error = CL_SUCCESS;
    for (cl_uint i = 0; i < n; i++) {
        Event *event = get<Event>(handles[i]);
        if (!event) return CL_INVALID_EVENT;
        if (event->context.get() != get<Event>(handles[0])->context.get()) return CL_INVALID_CONTEXT;
        if (event->recorded && event->status < 0) error = CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST;
    }
    Waits waits(n, handles);
    if (!waits.count) return error;
    for (cl_uint i = 0; i < waits.count; i++) target->clRetainEvent(waits.list[i]);
    inside.leave();
    Awaiting end;
    cl_int waited = target->clWaitForEvents(waits.count, waits.list);
    for (cl_uint i = 0; i < waits.count; i++) target->clReleaseEvent(waits.list[i]);
    return waited == CL_SUCCESS ? error : waited;
}

cl_int CL_API_CALL layer_clEnqueueWaitForEvents(cl_command_queue queue, cl_uint n, const cl_event *handles) {
    if (!n || !handles) return CL_INVALID_VALUE;
    Inside inside;
    Queue *own = get<Queue>(queue);
    if (!own) return CL_INVALID_COMMAND_QUEUE;
    Waits waits(n, handles, own);
    if (waits.error) return CL_INVALID_EVENT;
    return waits.count ? target->clEnqueueWaitForEvents(real_of(own), waits.count, waits.list) : CL_SUCCESS;
}

cl_int CL_API_CALL layer_clGetEventInfo(cl_event event, cl_event_info what, size_t size, void *value,
                                        size_t *size_ret) {
    Inside inside;
    Event *own = get<Event>(event);
    if (!own) return CL_INVALID_EVENT;
    switch (what) {
    case CL_EVENT_COMMAND_QUEUE: return answer(handle_of(own->queue.get()), size, value, size_ret);
    case CL_EVENT_CONTEXT: return answer(handle_of(own->context.get()), size, value, size_ret);
    case CL_EVENT_REFERENCE_COUNT: return answer(cl_uint(own->slot->retained.load()), size, value, size_ret);
    case CL_EVENT_COMMAND_TYPE:
        if (own->type) return answer(own->type, size, value, size_ret);
        break;
    case CL_EVENT_COMMAND_EXECUTION_STATUS:
        if (own->recorded) return answer(own->status, size, value, size_ret);
        break;
    default: return CL_INVALID_VALUE;
    }
    return target->clGetEventInfo(real_of(own), what, size, value, size_ret);
}

cl_int CL_API_CALL layer_clGetEventProfilingInfo(cl_event event, cl_profiling_info what, size_t size, void *value,
                                                 size_t *size_ret) {
    Inside inside;
    Event *own = get<Event>(event);
    if (!own) return CL_INVALID_EVENT;
    if (!own->recorded) return target->clGetEventProfilingInfo(real_of(own), what, size, value, size_ret);
    if (own->times_error != CL_SUCCESS) return own->times_error;
    cl_uint which = what - CL_PROFILING_COMMAND_QUEUED;
    if (which >= 5) return CL_INVALID_VALUE;
    return answer(own->times[which], size, value, size_ret);
}

struct Notice {
    cl_event event;
    void(CL_CALLBACK *notify)(cl_event, cl_int, void *);
    void *data;
    cl_int type;
    std::atomic<bool> is_told{false};
};

namespace {

std::mutex &notices_lock = *new std::mutex; /* of all events */

/* The event is held until its callback has run. */
void tell(const std::shared_ptr<Notice> &notice, cl_int status) {
    if (notice->is_told.exchange(true)) return;
    later([notice, status] {
        notice->notify(notice->event, status, notice->data);
        Inside inside;
        drop(reinterpret_cast<Slot *>(notice->event));
    });
}

void CL_CALLBACK told(cl_event, cl_int status, void *data) {
    std::unique_ptr<std::shared_ptr<Notice>> notice(static_cast<std::shared_ptr<Notice> *>(data));
    tell(*notice, status);
}

} // namespace

/* The driver may call back later than the event ends, and no more once the event and its context are gone. */
void Event::tell_all() {
    std::lock_guard<std::mutex> guard(notices_lock);
    for (auto &notice : notices) tell(notice, status < 0 ? status : notice->type);
}

cl_int CL_API_CALL layer_clSetEventCallback(cl_event event, cl_int type,
                                            void(CL_CALLBACK *notify)(cl_event, cl_int, void *), void *data) {
    Inside inside;
    Event *own = get<Event>(event);
    if (!own) return CL_INVALID_EVENT;
    if (!notify || type < CL_COMPLETE || type > CL_SUBMITTED) return CL_INVALID_VALUE;
    if (own->user) own->awaited.store(true);
    auto notice = std::make_shared<Notice>();
    notice->event = event;
    notice->notify = notify;
    notice->data = data;
    notice->type = type;
    hold(own->slot);
    if (own->recorded) {
        tell(notice, own->status < 0 ? own->status : type);
        return CL_SUCCESS;
    }
    auto passed = std::make_unique<std::shared_ptr<Notice>>(notice);
    cl_int error = target->clSetEventCallback(real_of(own), type, told, passed.get());
    if (error != CL_SUCCESS) {
        drop(own->slot);
        return error;
    }
    passed.release(); /* to `told` */
    std::lock_guard<std::mutex> guard(notices_lock);
    own->notices.push_back(std::move(notice));
    return CL_SUCCESS;
}

cl_int CL_API_CALL layer_clEnqueueSVMFree(cl_command_queue queue, cl_uint n, void *pointers[],
                                          void(CL_CALLBACK *notify)(cl_command_queue, cl_uint, void *[], void *),
                                          void *, cl_uint given, const cl_event *handles, cl_event *event) {
    Inside inside;
    Queue *own = get<Queue>(queue);
    if (!own) return CL_INVALID_COMMAND_QUEUE;
    if (notify || !target->clEnqueueSVMFree) return CL_INVALID_OPERATION; /* it would be told the driver's queue */
    Waits waits(given, handles, own);
    if (waits.error) return waits.error;
    cl_event made = nullptr;
    cl_int error = target->clEnqueueSVMFree(real_of(own), n, pointers, nullptr, nullptr, waits.count, waits.list,
                                            event ? &made : nullptr);
    return finish_command(inside, own, error, made, event, false);
}

} // namespace tenbin
