/* Contexts, queues and samplers. */
#include "objects.h"

namespace tenbin {

Context::~Context() {
    if (left.real) release_real(kind, left.real);
    run_later(farewells);
}

cl_context Context::make(const Candidate &now, cl_int *error) const {
    std::vector<cl_context_properties> mine = properties;
    for (size_t i = 0; i + 1 < mine.size() && mine[i]; i += 2)
        if (mine[i] == CL_CONTEXT_PLATFORM) mine[i + 1] = reinterpret_cast<cl_context_properties>(now.platform);
    return target->clCreateContext(mine.empty() ? nullptr : mine.data(), 1, &now.device, notify, notify_data, error);
}

using ContextNotify = void(CL_CALLBACK *)(const char *, const void *, size_t, void *);

static cl_context new_context(const cl_context_properties *properties, ContextNotify notify, void *data,
                              cl_int *error) {
    auto context = std::make_unique<Context>();
    for (const cl_context_properties *p = properties; p && *p; p += 2) {
        if (*p != CL_CONTEXT_PLATFORM && *p != CL_CONTEXT_INTEROP_USER_SYNC)
            return refuse<cl_context>(error, CL_INVALID_PROPERTY); /* sharing with graphics is not offered */
        if (*p == CL_CONTEXT_PLATFORM && !get<Platform>(reinterpret_cast<void *>(p[1])))
            return refuse<cl_context>(error, CL_INVALID_PLATFORM);
        context->properties.insert(context->properties.end(), {p[0], p[1]});
    }
    if (properties) context->properties.push_back(0);
    if (!notify && data) return refuse<cl_context>(error, CL_INVALID_VALUE);
    context->notify = notify;
    context->notify_data = data;
    start_control();
    cl_int code;
    cl_context real = context->make(candidates()[current_candidate()], &code);
    if (error) *error = code;
    return code == CL_SUCCESS ? wrap(context.release(), real, error) : nullptr;
}

cl_context CL_API_CALL layer_clCreateContext(const cl_context_properties *properties, cl_uint n,
                                             const cl_device_id *devices, ContextNotify notify, void *data,
                                             cl_int *error) {
    Inside inside;
    if (!devices || !n) return refuse<cl_context>(error, CL_INVALID_VALUE);
    for (cl_uint i = 0; i < n; i++)
        if (!is_ours(devices[i])) return refuse<cl_context>(error, CL_INVALID_DEVICE);
    return new_context(properties, notify, data, error);
}

cl_int CL_API_CALL layer_clGetDeviceIDs(cl_platform_id, cl_device_type, cl_uint, cl_device_id *, cl_uint *);

cl_context CL_API_CALL layer_clCreateContextFromType(const cl_context_properties *properties, cl_device_type type,
                                                     ContextNotify notify, void *data, cl_int *error) {
    cl_device_id device;
    cl_int found = layer_clGetDeviceIDs(handle_of(the_platform()), type, 1, &device, nullptr);
    if (found != CL_SUCCESS) return refuse<cl_context>(error, found);
    Inside inside;
    return new_context(properties, notify, data, error);
}

cl_int CL_API_CALL layer_clGetContextInfo(cl_context context, cl_context_info what, size_t size, void *value,
                                          size_t *size_ret) {
    Inside inside;
    Context *own = get<Context>(context);
    if (!own) return CL_INVALID_CONTEXT;
    switch (what) {
    case CL_CONTEXT_REFERENCE_COUNT: return answer(cl_uint(own->slot->retained.load()), size, value, size_ret);
    case CL_CONTEXT_NUM_DEVICES: return answer(cl_uint(1), size, value, size_ret);
    case CL_CONTEXT_DEVICES: return answer(handle_of(the_device()), size, value, size_ret);
    case CL_CONTEXT_PROPERTIES: return answer_list(own->properties, size, value, size_ret);
    default: return CL_INVALID_VALUE;
    }
}

cl_int CL_API_CALL layer_clSetContextDestructorCallback(cl_context context,
                                                        void(CL_CALLBACK *notify)(cl_context, void *), void *data) {
    Inside inside;
    Context *own = get<Context>(context);
    if (!own) return CL_INVALID_CONTEXT;
    if (!notify) return CL_INVALID_VALUE;
    own->farewells.push_back([=] { notify(context, data); });
    return CL_SUCCESS;
}

namespace {

/* A queue that the program has released, with an event that is complete when its work is done. */
struct Leftover {
    cl_command_queue queue;
    cl_event last;
};
std::mutex &leftovers_lock = *new std::mutex;
std::vector<Leftover> &leftovers = *new std::vector<Leftover>;

} // namespace

cl_int finish(cl_command_queue queue) {
    cl_event marker;
    cl_int error = target->clEnqueueMarkerWithWaitList(queue, 0, nullptr, &marker);
    if (error != CL_SUCCESS) return error;
    error = target->clWaitForEvents(1, &marker);
    target->clReleaseEvent(marker);
    return error;
}

void reap_queues(bool all) {
    std::lock_guard<std::mutex> guard(leftovers_lock);
    for (size_t i = leftovers.size(); i-- > 0;) {
        Leftover &one = leftovers[i];
        cl_int status = CL_COMPLETE;
        if (all) target->clWaitForEvents(1, &one.last);
        target->clGetEventInfo(one.last, CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof(status), &status, nullptr);
        if (status > CL_COMPLETE && !all) continue;
        target->clReleaseEvent(one.last);
        target->clReleaseCommandQueue(one.queue);
        leftovers.erase(leftovers.begin() + ptrdiff_t(i));
    }
}

void leftover_events(std::vector<cl_event> &events) {
    std::lock_guard<std::mutex> guard(leftovers_lock);
    for (auto &one : leftovers)
        if (target->clRetainEvent(one.last) == CL_SUCCESS) events.push_back(one.last);
}

/* Work may still be under way on a queue that the program has released, and a move has to wait for it. */
void Queue::let_go(void *last) {
    auto real = static_cast<cl_command_queue>(last);
    cl_event marker;
    if (target->clEnqueueMarkerWithWaitList(real, 0, nullptr, &marker) != CL_SUCCESS) {
        target->clReleaseCommandQueue(real);
        return;
    }
    target->clFlush(real);
    {
        std::lock_guard<std::mutex> guard(leftovers_lock);
        leftovers.push_back({real, marker});
    }
    reap_queues(false);
}

static cl_command_queue new_queue(cl_context context, cl_device_id device, std::vector<cl_queue_properties> properties,
                                  bool has_list, cl_int *error) {
    Inside inside;
    Context *own = get<Context>(context);
    if (!own) return refuse<cl_command_queue>(error, CL_INVALID_CONTEXT);
    if (!is_ours(device)) return refuse<cl_command_queue>(error, CL_INVALID_DEVICE);
    for (size_t i = 0; i + 1 < properties.size(); i += 2)
        if (properties[i] == CL_QUEUE_PROPERTIES && (properties[i + 1] & CL_QUEUE_ON_DEVICE))
            not_movable("a queue on the device");
    cl_int code;
    cl_command_queue real =
        target->clCreateCommandQueueWithProperties
            ? target->clCreateCommandQueueWithProperties(real_of(own), real_of(the_device()),
                                                         has_list ? properties.data() : nullptr, &code)
            : refuse<cl_command_queue>(&code, CL_INVALID_OPERATION);
    if (error) *error = code;
    if (code != CL_SUCCESS) return nullptr;
    auto queue = new Queue;
    queue->context = Ref<Context>(own);
    queue->properties = std::move(properties);
    if (!has_list) queue->properties.clear();
    return wrap(queue, real, error);
}

cl_command_queue CL_API_CALL layer_clCreateCommandQueue(cl_context context, cl_device_id device,
                                                        cl_command_queue_properties properties, cl_int *error) {
    if (properties & ~cl_command_queue_properties(CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE | CL_QUEUE_PROFILING_ENABLE))
        return refuse<cl_command_queue>(error, CL_INVALID_VALUE);
    return new_queue(context, device, {CL_QUEUE_PROPERTIES, properties, 0}, true, error);
}

cl_command_queue CL_API_CALL layer_clCreateCommandQueueWithProperties(cl_context context, cl_device_id device,
                                                                      const cl_queue_properties *properties,
                                                                      cl_int *error) {
    std::vector<cl_queue_properties> list;
    for (const cl_queue_properties *p = properties; p && *p; p += 2) list.insert(list.end(), {p[0], p[1]});
    list.push_back(0);
    return new_queue(context, device, std::move(list), properties != nullptr, error);
}

cl_int CL_API_CALL layer_clGetCommandQueueInfo(cl_command_queue queue, cl_command_queue_info what, size_t size,
                                               void *value, size_t *size_ret) {
    Inside inside;
    Queue *own = get<Queue>(queue);
    if (!own) return CL_INVALID_COMMAND_QUEUE;
    switch (what) {
    case CL_QUEUE_CONTEXT: return answer(handle_of(own->context.get()), size, value, size_ret);
    case CL_QUEUE_DEVICE: return answer(handle_of(the_device()), size, value, size_ret);
    case CL_QUEUE_REFERENCE_COUNT: return answer(cl_uint(own->slot->retained.load()), size, value, size_ret);
    default: return target->clGetCommandQueueInfo(real_of(own), what, size, value, size_ret);
    }
}

cl_int CL_API_CALL layer_clSetDefaultDeviceCommandQueue(cl_context context, cl_device_id device,
                                                        cl_command_queue queue) {
    Inside inside;
    Context *own = get<Context>(context);
    if (!own) return CL_INVALID_CONTEXT;
    if (!is_ours(device)) return CL_INVALID_DEVICE;
    cl_int error = target->clSetDefaultDeviceCommandQueue(real_of(own), real_of(the_device()),
                                                          real_of(get<Queue>(queue)));
    if (error == CL_SUCCESS) not_movable("a queue on the device");
    return error;
}

cl_int CL_API_CALL layer_clFinish(cl_command_queue queue) {
    Inside inside;
    Queue *own = get<Queue>(queue);
    if (!own) return CL_INVALID_COMMAND_QUEUE;
    cl_command_queue real = real_of(own);
    target->clRetainCommandQueue(real);
    inside.leave(); /* a move does not wait for the program's waiting */
    Awaiting end;
    cl_int error = target->clFinish(real);
    target->clReleaseCommandQueue(real);
    return error;
}

static cl_sampler new_sampler(cl_context context, std::unique_ptr<Sampler> sampler, cl_int *error) {
    Inside inside;
    Context *own = get<Context>(context);
    if (!own) return refuse<cl_sampler>(error, CL_INVALID_CONTEXT);
    cl_int code;
    cl_sampler real = target->clCreateSampler(real_of(own), sampler->normalized, sampler->addressing, sampler->filter,
                                              &code);
    if (error) *error = code;
    if (code != CL_SUCCESS) return nullptr;
    sampler->context = Ref<Context>(own);
    return wrap(sampler.release(), real, error);
}

cl_sampler CL_API_CALL layer_clCreateSampler(cl_context context, cl_bool normalized, cl_addressing_mode addressing,
                                             cl_filter_mode filter, cl_int *error) {
    auto sampler = std::make_unique<Sampler>();
    sampler->normalized = normalized;
    sampler->addressing = addressing;
    sampler->filter = filter;
    return new_sampler(context, std::move(sampler), error);
}

cl_sampler CL_API_CALL layer_clCreateSamplerWithProperties(cl_context context, const cl_sampler_properties *list,
                                                           cl_int *error) {
    auto sampler = std::make_unique<Sampler>();
    for (const cl_sampler_properties *p = list; p && *p; p += 2) {
        switch (*p) {
        case CL_SAMPLER_NORMALIZED_COORDS: sampler->normalized = cl_bool(p[1]); break;
        case CL_SAMPLER_ADDRESSING_MODE: sampler->addressing = cl_addressing_mode(p[1]); break;
        case CL_SAMPLER_FILTER_MODE: sampler->filter = cl_filter_mode(p[1]); break;
        default: return refuse<cl_sampler>(error, CL_INVALID_VALUE); /* mip maps are not offered */
        }
        sampler->properties.insert(sampler->properties.end(), {p[0], p[1]});
    }
    if (list) sampler->properties.push_back(0);
    return new_sampler(context, std::move(sampler), error);
}

cl_int CL_API_CALL layer_clGetSamplerInfo(cl_sampler sampler, cl_sampler_info what, size_t size, void *value,
                                          size_t *size_ret) {
    Inside inside;
    Sampler *own = get<Sampler>(sampler);
    if (!own) return CL_INVALID_SAMPLER;
    switch (what) {
    case CL_SAMPLER_CONTEXT: return answer(handle_of(own->context.get()), size, value, size_ret);
    case CL_SAMPLER_PROPERTIES: return answer_list(own->properties, size, value, size_ret);
    case CL_SAMPLER_REFERENCE_COUNT: return answer(cl_uint(own->slot->retained.load()), size, value, size_ret);
    default: return target->clGetSamplerInfo(real_of(own), what, size, value, size_ret);
    }
}

} // namespace tenbin
