/* Buffers, sub-buffers and images. */
#include "objects.h"

namespace tenbin {

constexpr cl_mem_flags HOST_ACCESS = CL_MEM_HOST_WRITE_ONLY | CL_MEM_HOST_READ_ONLY | CL_MEM_HOST_NO_ACCESS;

Former::~Former() {
    finish(queue);
    target->clReleaseMemObject(memory);
    target->clReleaseCommandQueue(queue);
}

void Memory::extent(size_t region[3]) const {
    const cl_image_desc &d = description;
    region[0] = d.image_width;
    region[1] = region[2] = 1;
    switch (d.image_type) {
    case CL_MEM_OBJECT_IMAGE1D_ARRAY: region[1] = d.image_array_size; break;
    case CL_MEM_OBJECT_IMAGE2D: region[1] = d.image_height; break;
    case CL_MEM_OBJECT_IMAGE2D_ARRAY: region[1] = d.image_height; region[2] = d.image_array_size; break;
    case CL_MEM_OBJECT_IMAGE3D: region[1] = d.image_height; region[2] = d.image_depth; break;
    default: break;
    }
}

void Memory::touch() {
    Memory *root = this;
    while (root->parent) root = root->parent.get();
    if (!root->dirty.load(std::memory_order_relaxed)) root->dirty.store(true, std::memory_order_relaxed);
}

/* The driver is not told what the host may not do, because the copies of a move do it; the layer refuses it. */
static bool are_exclusive(cl_mem_flags flags) {
    cl_mem_flags host = flags & HOST_ACCESS;
    return (host & (host - 1)) == 0;
}

static cl_mem finish_memory(std::unique_ptr<Memory> memory, Context *context, cl_mem real, cl_int code,
                            cl_int *error) {
    if (error) *error = code;
    if (code != CL_SUCCESS) return nullptr;
    memory->context = Ref<Context>(context);
    target->clGetMemObjectInfo(real, CL_MEM_SIZE, sizeof(size_t), &memory->size, nullptr);
    return wrap(memory.release(), real, error);
}

cl_mem CL_API_CALL layer_clCreateBuffer(cl_context context, cl_mem_flags flags, size_t size, void *host,
                                        cl_int *error) {
    Inside inside;
    Context *own = get<Context>(context);
    if (!own) return refuse<cl_mem>(error, CL_INVALID_CONTEXT);
    if (!are_exclusive(flags)) return refuse<cl_mem>(error, CL_INVALID_VALUE);
    cl_int code;
    cl_mem real = target->clCreateBuffer(real_of(own), flags & ~HOST_ACCESS, size, host, &code);
    auto memory = std::make_unique<Memory>();
    memory->flags = flags;
    memory->host = flags & CL_MEM_USE_HOST_PTR ? host : nullptr;
    return finish_memory(std::move(memory), own, real, code, error);
}

static cl_mem note_properties(cl_mem made, const cl_mem_properties *empty) {
    if (made && empty) get<Memory>(made)->properties.push_back(0);
    return made;
}

cl_mem CL_API_CALL layer_clCreateBufferWithProperties(cl_context context, const cl_mem_properties *properties,
                                                      cl_mem_flags flags, size_t size, void *host, cl_int *error) {
    if (properties && *properties) return refuse<cl_mem>(error, CL_INVALID_PROPERTY);
    return note_properties(layer_clCreateBuffer(context, flags, size, host, error), properties);
}

cl_mem CL_API_CALL layer_clCreateSubBuffer(cl_mem buffer, cl_mem_flags flags, cl_buffer_create_type type,
                                           const void *about, cl_int *error) {
    Inside inside;
    Memory *own = get<Memory>(buffer);
    if (!own || own->image || own->parent) return refuse<cl_mem>(error, CL_INVALID_MEM_OBJECT);
    if (type != CL_BUFFER_CREATE_TYPE_REGION || !about || !are_exclusive(flags))
        return refuse<cl_mem>(error, CL_INVALID_VALUE);
    auto region = static_cast<const cl_buffer_region *>(about);
    cl_mem_flags host = own->flags & HOST_ACCESS;
    if (host && (flags & HOST_ACCESS) && (flags & HOST_ACCESS) != host && !(flags & CL_MEM_HOST_NO_ACCESS))
        return refuse<cl_mem>(error, CL_INVALID_VALUE);
    cl_uint align_bits = 0;
    for (auto &one : candidates()) {
        cl_uint bits = 0;
        target->clGetDeviceInfo(one.device, CL_DEVICE_MEM_BASE_ADDR_ALIGN, sizeof(bits), &bits, nullptr);
        if (bits > align_bits) align_bits = bits;
    }
    if (align_bits >= 8 && region->origin % (align_bits / 8) && region->origin + region->size <= own->size)
        return refuse<cl_mem>(error, CL_MISALIGNED_SUB_BUFFER_OFFSET);
    cl_int code;
    cl_mem real = target->clCreateSubBuffer(real_of(own), flags & ~HOST_ACCESS, type, about, &code);
    auto memory = std::make_unique<Memory>();
    memory->flags = flags & HOST_ACCESS ? flags : flags | host;
    constexpr cl_mem_flags KERNEL = CL_MEM_READ_WRITE | CL_MEM_READ_ONLY | CL_MEM_WRITE_ONLY;
    if (!(flags & KERNEL)) memory->flags |= own->flags & KERNEL;
    memory->flags |= own->flags & (CL_MEM_USE_HOST_PTR | CL_MEM_ALLOC_HOST_PTR | CL_MEM_COPY_HOST_PTR);
    memory->parent = Ref<Memory>(own);
    memory->origin = region->origin;
    if (own->host) memory->host = static_cast<char *>(own->host) + region->origin;
    return finish_memory(std::move(memory), own->context.get(), real, code, error);
}

cl_mem CL_API_CALL layer_clCreateImage(cl_context context, cl_mem_flags flags, const cl_image_format *format,
                                       const cl_image_desc *about, void *host, cl_int *error) {
    Inside inside;
    Context *own = get<Context>(context);
    if (!own) return refuse<cl_mem>(error, CL_INVALID_CONTEXT);
    if (!about) return refuse<cl_mem>(error, CL_INVALID_IMAGE_DESCRIPTOR);
    if (!are_exclusive(flags)) return refuse<cl_mem>(error, CL_INVALID_VALUE);
    Memory *parent = about->mem_object ? get<Memory>(about->mem_object) : nullptr;
    if (about->mem_object && !parent) return refuse<cl_mem>(error, CL_INVALID_IMAGE_DESCRIPTOR);
    if (parent && parent->image) not_movable("an image that is a view of an image");
    if (about->num_mip_levels || about->num_samples) not_movable("an image with mip levels or samples");
    auto memory = std::make_unique<Memory>();
    memory->image = true;
    memory->flags = flags;
    memory->description = *about;
    memory->description.mem_object = nullptr;
    memory->host = flags & CL_MEM_USE_HOST_PTR ? host : nullptr;
    memory->parent = Ref<Memory>(parent);
    cl_image_desc real_about = *about;
    real_about.mem_object = real_of(parent);
    cl_int code;
    cl_mem real = target->clCreateImage(real_of(own), flags & ~HOST_ACCESS, format, &real_about, host, &code);
    if (code == CL_SUCCESS) {
        memory->format = *format;
        target->clGetImageInfo(real, CL_IMAGE_ELEMENT_SIZE, sizeof(size_t), &memory->element_size, nullptr);
    }
    return finish_memory(std::move(memory), own, real, code, error);
}

cl_mem CL_API_CALL layer_clCreateImageWithProperties(cl_context context, const cl_mem_properties *properties,
                                                     cl_mem_flags flags, const cl_image_format *format,
                                                     const cl_image_desc *about, void *host, cl_int *error) {
    if (properties && *properties) return refuse<cl_mem>(error, CL_INVALID_PROPERTY);
    return note_properties(layer_clCreateImage(context, flags, format, about, host, error), properties);
}

cl_mem CL_API_CALL layer_clCreateImage2D(cl_context context, cl_mem_flags flags, const cl_image_format *format,
                                         size_t width, size_t height, size_t row_pitch, void *host, cl_int *error) {
    cl_image_desc about{};
    about.image_type = CL_MEM_OBJECT_IMAGE2D;
    about.image_width = width;
    about.image_height = height;
    about.image_row_pitch = row_pitch;
    return layer_clCreateImage(context, flags, format, &about, host, error);
}

cl_mem CL_API_CALL layer_clCreateImage3D(cl_context context, cl_mem_flags flags, const cl_image_format *format,
                                         size_t width, size_t height, size_t depth, size_t row_pitch,
                                         size_t slice_pitch, void *host, cl_int *error) {
    cl_image_desc about{};
    about.image_type = CL_MEM_OBJECT_IMAGE3D;
    about.image_width = width;
    about.image_height = height;
    about.image_depth = depth;
    about.image_row_pitch = row_pitch;
    about.image_slice_pitch = slice_pitch;
    return layer_clCreateImage(context, flags, format, &about, host, error);
}

cl_mem CL_API_CALL layer_clCreatePipe(cl_context context, cl_mem_flags flags, cl_uint packet, cl_uint packets,
                                      const cl_pipe_properties *properties, cl_int *error) {
    Inside inside;
    Context *own = get<Context>(context);
    if (!own) return refuse<cl_mem>(error, CL_INVALID_CONTEXT);
    if (!target->clCreatePipe) return refuse<cl_mem>(error, CL_INVALID_OPERATION);
    not_movable("a pipe");
    cl_int code;
    cl_mem real = target->clCreatePipe(real_of(own), flags, packet, packets, properties, &code);
    auto memory = std::make_unique<Memory>();
    memory->flags = flags;
    return finish_memory(std::move(memory), own, real, code, error);
}

cl_int CL_API_CALL layer_clGetMemObjectInfo(cl_mem object, cl_mem_info what, size_t size, void *value,
                                            size_t *size_ret) {
    Inside inside;
    Memory *own = get<Memory>(object);
    if (!own) return CL_INVALID_MEM_OBJECT;
    switch (what) {
    case CL_MEM_FLAGS: return answer(own->flags, size, value, size_ret);
    case CL_MEM_REFERENCE_COUNT: return answer(cl_uint(own->slot->retained.load()), size, value, size_ret);
    case CL_MEM_CONTEXT: return answer(handle_of(own->context.get()), size, value, size_ret);
    case CL_MEM_ASSOCIATED_MEMOBJECT: return answer(handle_of(own->parent.get()), size, value, size_ret);
    case CL_MEM_HOST_PTR: return answer(own->host, size, value, size_ret);
    case CL_MEM_PROPERTIES: return answer_list(own->properties, size, value, size_ret);
    case CL_MEM_MAP_COUNT: {
        std::lock_guard<std::mutex> guard(own->lock);
        return answer(cl_uint(own->mappings.size()), size, value, size_ret);
    }
    default: return target->clGetMemObjectInfo(real_of(own), what, size, value, size_ret);
    }
}

cl_int CL_API_CALL layer_clGetImageInfo(cl_mem image, cl_image_info what, size_t size, void *value,
                                        size_t *size_ret) {
    Inside inside;
    Memory *own = get<Memory>(image);
    if (!own || !own->image) return CL_INVALID_MEM_OBJECT;
    if (what == CL_IMAGE_BUFFER) return answer(handle_of(own->parent.get()), size, value, size_ret);
    return target->clGetImageInfo(real_of(own), what, size, value, size_ret);
}

/* Programs free host memory in it, so it comes when the driver has let go of the object that it has now. */
static void CL_CALLBACK gone(cl_mem, void *data) {
    auto callbacks = static_cast<Callbacks *>(data);
    later([callbacks] {
        for (auto one = callbacks->rbegin(); one != callbacks->rend(); ++one) (*one)();
        delete callbacks;
    });
}

void Memory::let_go(void *last) {
    auto real = static_cast<cl_mem>(last);
    if (!farewells.empty()) {
        auto callbacks = new Callbacks(std::move(farewells));
        farewells.clear();
        if (target->clSetMemObjectDestructorCallback(real, gone, callbacks) != CL_SUCCESS) gone(real, callbacks);
    }
    target->clReleaseMemObject(real);
}

cl_int CL_API_CALL layer_clSetMemObjectDestructorCallback(cl_mem object, void(CL_CALLBACK *notify)(cl_mem, void *),
                                                          void *data) {
    Inside inside;
    Memory *own = get<Memory>(object);
    if (!own) return CL_INVALID_MEM_OBJECT;
    if (!notify) return CL_INVALID_VALUE;
    std::lock_guard<std::mutex> guard(own->lock);
    own->farewells.push_back([=] { notify(object, data); });
    return CL_SUCCESS;
}

cl_int CL_API_CALL layer_clEnqueueMigrateMemObjects(cl_command_queue queue, cl_uint n, const cl_mem *objects,
                                                    cl_mem_migration_flags flags, cl_uint given,
                                                    const cl_event *handles, cl_event *event) {
    Inside inside;
    Queue *own = get<Queue>(queue);
    if (!own) return CL_INVALID_COMMAND_QUEUE;
    if (!n || !objects) return CL_INVALID_VALUE;
    std::vector<cl_mem> reals;
    for (cl_uint i = 0; i < n; i++) {
        Memory *memory = get<Memory>(objects[i]);
        if (!memory) return CL_INVALID_MEM_OBJECT;
        reals.push_back(real_of(memory));
    }
    Waits waits(given, handles, own);
    if (waits.error) return waits.error;
    cl_event made = nullptr;
    cl_int error = target->clEnqueueMigrateMemObjects(real_of(own), n, reals.data(), flags, waits.count, waits.list,
                                                      event ? &made : nullptr);
    return finish_command(inside, own, error, made, event, false);
}

} // namespace tenbin
