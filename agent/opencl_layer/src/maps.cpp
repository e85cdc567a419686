/* Mapped memory: a pointer stays valid until its unmap, also if its buffer has changed devices meanwhile. */
#include "objects.h"

namespace tenbin {

static bool is_for_writing(cl_map_flags flags) {
    return flags & (CL_MAP_WRITE | CL_MAP_WRITE_INVALIDATE_REGION);
}

static bool may_map(const Memory &memory, cl_map_flags flags) {
    bool reads = flags & CL_MAP_READ, writes = is_for_writing(flags);
    return !(reads && !memory.host_may(CL_MEM_HOST_WRITE_ONLY)) &&
           !(writes && !memory.host_may(CL_MEM_HOST_READ_ONLY));
}

/* Note a mapping that the driver has made, and wait for it where the program asked to. */
static void *finish_map(Inside &inside, Queue *queue, Memory *memory, Mapping mapping, cl_int code, cl_event made,
                        cl_event *event, bool blocking, cl_int *error) {
    if (code == CL_SUCCESS) {
        std::lock_guard<std::mutex> guard(memory->lock);
        memory->mappings.push_back(mapping);
        if (is_for_writing(mapping.flags)) memory->touch();
    }
    code = finish_command(inside, queue, code, made, event, blocking);
    if (error) *error = code;
    return code == CL_SUCCESS ? mapping.pointer : nullptr;
}

void *CL_API_CALL layer_clEnqueueMapBuffer(cl_command_queue queue, cl_mem buffer, cl_bool blocking, cl_map_flags flags,
                                           size_t offset, size_t size, cl_uint given, const cl_event *handles,
                                           cl_event *event, cl_int *error) {
    Inside inside;
    Queue *own = get<Queue>(queue);
    if (!own) return refuse<void *>(error, CL_INVALID_COMMAND_QUEUE);
    Memory *memory = get<Memory>(buffer);
    if (!memory || memory->image) return refuse<void *>(error, CL_INVALID_MEM_OBJECT);
    if (!may_map(*memory, flags)) return refuse<void *>(error, CL_INVALID_OPERATION);
    Waits waits(given, handles, own);
    if (waits.error) return refuse<void *>(error, waits.error);
    cl_event made = nullptr;
    cl_int code;
    void *pointer = target->clEnqueueMapBuffer(real_of(own), real_of(memory), CL_FALSE, flags, offset, size,
                                               waits.count, waits.list, event || blocking ? &made : nullptr, &code);
    Mapping mapping{pointer, flags, {offset, 0, 0}, {size, 1, 1}, 0, 0, nullptr};
    return finish_map(inside, own, memory, mapping, code, made, event, blocking, error);
}

void *CL_API_CALL layer_clEnqueueMapImage(cl_command_queue queue, cl_mem image, cl_bool blocking, cl_map_flags flags,
                                          const size_t *origin, const size_t *region, size_t *row_pitch,
                                          size_t *slice_pitch, cl_uint given, const cl_event *handles,
                                          cl_event *event, cl_int *error) {
    Inside inside;
    Queue *own = get<Queue>(queue);
    if (!own) return refuse<void *>(error, CL_INVALID_COMMAND_QUEUE);
    Memory *memory = get<Memory>(image);
    if (!memory || !memory->image) return refuse<void *>(error, CL_INVALID_MEM_OBJECT);
    if (!origin || !region) return refuse<void *>(error, CL_INVALID_VALUE);
    if (!may_map(*memory, flags)) return refuse<void *>(error, CL_INVALID_OPERATION);
    Waits waits(given, handles, own);
    if (waits.error) return refuse<void *>(error, waits.error);
    cl_event made = nullptr;
    cl_int code;
    size_t slice = 0;
    void *pointer = target->clEnqueueMapImage(real_of(own), real_of(memory), CL_FALSE, flags, origin, region,
                                              row_pitch, slice_pitch ? slice_pitch : &slice, waits.count, waits.list,
                                              event || blocking ? &made : nullptr, &code);
    Mapping mapping{pointer, flags, {}, {}, 0, 0, nullptr};
    if (code == CL_SUCCESS) {
        memcpy(mapping.origin, origin, sizeof(mapping.origin));
        memcpy(mapping.region, region, sizeof(mapping.region));
        mapping.row_pitch = *row_pitch;
        mapping.slice_pitch = slice_pitch ? *slice_pitch : slice;
    }
    return finish_map(inside, own, memory, mapping, code, made, event, blocking, error);
}

/* Take the last mapping at `pointer` out of the list. */
static bool take_mapping(Memory *memory, const void *pointer, Mapping *mapping) {
    std::lock_guard<std::mutex> guard(memory->lock);
    for (size_t i = memory->mappings.size(); i-- > 0;)
        if (memory->mappings[i].pointer == pointer) {
            *mapping = memory->mappings[i];
            memory->mappings.erase(memory->mappings.begin() + ptrdiff_t(i));
            return true;
        }
    return false;
}

/* What the program has written into the old mapping is written to the buffer that it has now. */
static cl_int write_back(Queue *queue, Memory *memory, const Mapping &m, const Waits &waits, cl_event *made) {
    if (!is_for_writing(m.flags))
        return target->clEnqueueMarkerWithWaitList(real_of(queue), waits.count, waits.list, made);
    if (!memory->image)
        return target->clEnqueueWriteBuffer(real_of(queue), real_of(memory), CL_FALSE, m.origin[0], m.region[0],
                                            m.pointer, waits.count, waits.list, made);
    return target->clEnqueueWriteImage(real_of(queue), real_of(memory), CL_FALSE, m.origin, m.region, m.row_pitch,
                                       m.slice_pitch, m.pointer, waits.count, waits.list, made);
}

struct Unmapping {
    std::shared_ptr<Former> former;
    void *pointer;
};

static void CL_CALLBACK written_back(cl_event, cl_int, void *data) {
    auto unmapping = static_cast<Unmapping *>(data);
    later([unmapping] {
        target->clEnqueueUnmapMemObject(unmapping->former->queue, unmapping->former->memory, unmapping->pointer, 0,
                                        nullptr, nullptr);
        delete unmapping; /* the last one of a former buffer releases it */
    });
}

cl_int CL_API_CALL layer_clEnqueueUnmapMemObject(cl_command_queue queue, cl_mem object, void *pointer, cl_uint given,
                                                 const cl_event *handles, cl_event *event) {
    Inside inside;
    Queue *own = get<Queue>(queue);
    if (!own) return CL_INVALID_COMMAND_QUEUE;
    Memory *memory = get<Memory>(object);
    if (!memory) return CL_INVALID_MEM_OBJECT;
    Waits waits(given, handles, own);
    if (waits.error) return waits.error;
    Mapping mapping;
    if (!take_mapping(memory, pointer, &mapping)) return CL_INVALID_VALUE;
    if (is_for_writing(mapping.flags)) memory->touch();
    cl_event made = nullptr;
    cl_int error;
    if (!mapping.former) {
        error = target->clEnqueueUnmapMemObject(real_of(own), real_of(memory), pointer, waits.count, waits.list,
                                                event ? &made : nullptr);
    } else {
        error = write_back(own, memory, mapping, waits, &made);
        if (error == CL_SUCCESS) {
            target->clSetEventCallback(made, CL_COMPLETE, written_back, new Unmapping{mapping.former, pointer});
            target->clFlush(real_of(own));
        }
    }
    if (error != CL_SUCCESS) {
        std::lock_guard<std::mutex> guard(memory->lock);
        memory->mappings.push_back(mapping);
    }
    return finish_command(inside, own, error, made, event, false, CL_COMMAND_UNMAP_MEM_OBJECT);
}

} // namespace tenbin
