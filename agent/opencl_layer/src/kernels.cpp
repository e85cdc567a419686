/* Kernels and their arguments. */
#include <algorithm>

#include "objects.h"

namespace tenbin {

namespace {

struct Locked { /* a few instructions long, so no thread sleeps for it */
    std::atomic_flag &flag;
    explicit Locked(std::atomic_flag &f) : flag(f) {
        while (flag.test_and_set(std::memory_order_acquire)) {
        }
    }
    ~Locked() { flag.clear(std::memory_order_release); }
};

template <class T> bool ask(cl_kernel kernel, cl_uint index, cl_kernel_arg_info what, T *value) {
    return target->clGetKernelArgInfo(kernel, index, what, sizeof(T), value, nullptr) == CL_SUCCESS;
}

bool contains(const char *text, const char *part) { return strstr(text, part) != nullptr; }

/* What an argument is, asked of the driver; unknown where it does not tell. */
Argument::Is kind_of(cl_kernel kernel, cl_uint index) {
    char type[128] = "";
    cl_kernel_arg_address_qualifier space = 0;
    cl_kernel_arg_type_qualifier qualifiers = 0;
    if (!ask(kernel, index, CL_KERNEL_ARG_ADDRESS_QUALIFIER, &space)) return Argument::unknown;
    ask(kernel, index, CL_KERNEL_ARG_TYPE_NAME, &type);
    ask(kernel, index, CL_KERNEL_ARG_TYPE_QUALIFIER, &qualifiers);
    if (qualifiers & CL_KERNEL_ARG_TYPE_PIPE) return Argument::memory;
    if (space == CL_KERNEL_ARG_ADDRESS_LOCAL) return Argument::local;
    if (space == CL_KERNEL_ARG_ADDRESS_GLOBAL || space == CL_KERNEL_ARG_ADDRESS_CONSTANT) return Argument::memory;
    /* Drivers differ in the space of images and samplers, and a user's structure may be named alike. */
    if (contains(type, "image") || contains(type, "sampler")) return Argument::unknown;
    return Argument::value;
}

/* By what its source declares: constant memory, and images that are read, stay as they are. */
bool may_write(cl_kernel kernel, cl_uint index) {
    cl_kernel_arg_address_qualifier space = 0;
    cl_kernel_arg_access_qualifier access = 0;
    cl_kernel_arg_type_qualifier qualifiers = 0;
    if (ask(kernel, index, CL_KERNEL_ARG_ADDRESS_QUALIFIER, &space) && space == CL_KERNEL_ARG_ADDRESS_CONSTANT)
        return false;
    if (ask(kernel, index, CL_KERNEL_ARG_ACCESS_QUALIFIER, &access) && access == CL_KERNEL_ARG_ACCESS_READ_ONLY)
        return false;
    return !ask(kernel, index, CL_KERNEL_ARG_TYPE_QUALIFIER, &qualifiers) || !(qualifiers & CL_KERNEL_ARG_TYPE_CONST);
}

void touch(const Argument &argument) {
    if (!argument.slot || !argument.writes || argument.slot->generation != argument.generation ||
        argument.slot->kind.load(std::memory_order_acquire) != Kind::memory)
        return;
    static_cast<Memory *>(argument.slot->object)->touch();
}

void read_arguments(Kernel *kernel) {
    cl_kernel real = real_of(kernel);
    cl_uint n = 0;
    target->clGetKernelInfo(real, CL_KERNEL_NUM_ARGS, sizeof(n), &n, nullptr);
    kernel->arguments.resize(n);
    for (cl_uint i = 0; i < n; i++) {
        kernel->arguments[i].is = kind_of(real, i);
        kernel->arguments[i].writes = may_write(real, i);
    }
}

cl_kernel finish_kernel(Program *program, cl_kernel real, std::string name, cl_int *error) {
    auto kernel = new Kernel;
    kernel->program = Ref<Program>(program);
    kernel->name = std::move(name);
    kernel->largest_group = program->group_of(kernel->name);
    kernel->real = real;
    read_arguments(kernel);
    return wrap(kernel, real, error);
}

} // namespace

cl_kernel CL_API_CALL layer_clCreateKernel(cl_program program, const char *name, cl_int *error) {
    Inside inside;
    Program *own = get<Program>(program);
    if (!own) return refuse<cl_kernel>(error, CL_INVALID_PROGRAM);
    cl_int code;
    cl_kernel real = target->clCreateKernel(real_of(own), name, &code);
    if (error) *error = code;
    return code == CL_SUCCESS ? finish_kernel(own, real, name, error) : nullptr;
}

cl_int CL_API_CALL layer_clCreateKernelsInProgram(cl_program program, cl_uint n, cl_kernel *kernels,
                                                  cl_uint *count) {
    Inside inside;
    Program *own = get<Program>(program);
    if (!own) return CL_INVALID_PROGRAM;
    cl_uint there = 0;
    cl_int error = target->clCreateKernelsInProgram(real_of(own), n, kernels, &there);
    if (count) *count = there;
    if (error != CL_SUCCESS || !kernels) return error;
    for (cl_uint i = 0; i < there; i++) {
        char name[1024] = "";
        target->clGetKernelInfo(kernels[i], CL_KERNEL_FUNCTION_NAME, sizeof(name), name, nullptr);
        kernels[i] = finish_kernel(own, kernels[i], name, &error);
    }
    return error;
}

cl_kernel CL_API_CALL layer_clCloneKernel(cl_kernel kernel, cl_int *error) {
    Inside inside;
    Kernel *own = get<Kernel>(kernel);
    if (!own) return refuse<cl_kernel>(error, CL_INVALID_KERNEL);
    if (!target->clCloneKernel) return refuse<cl_kernel>(error, CL_INVALID_OPERATION);
    cl_int code;
    cl_kernel real = target->clCloneKernel(real_of(own), &code);
    if (error) *error = code;
    if (code != CL_SUCCESS) return nullptr;
    auto clone = new Kernel;
    clone->program = own->program;
    clone->name = own->name;
    clone->largest_group = own->largest_group;
    clone->arguments = own->arguments;
    return wrap(clone, real, error);
}

/* No larger than any device admits that the program may use. */
cl_int CL_API_CALL layer_clGetKernelWorkGroupInfo(cl_kernel kernel, cl_device_id device, cl_kernel_work_group_info what,
                                                  size_t size, void *value, size_t *size_ret) {
    Inside inside;
    Kernel *own = get<Kernel>(kernel);
    if (!own) return CL_INVALID_KERNEL;
    Device *own_device = get<Device>(device);
    if (device && !own_device) return CL_INVALID_DEVICE;
    cl_int error = target->clGetKernelWorkGroupInfo(real_of(own), real_of(own_device), what, size, value, size_ret);
    if (error != CL_SUCCESS || what != CL_KERNEL_WORK_GROUP_SIZE || !value) return error;
    size_t &most = *static_cast<size_t *>(value), least = most;
    layer_clGetDeviceInfo(handle_of(the_device()), CL_DEVICE_MAX_WORK_GROUP_SIZE, sizeof(least), &least, nullptr);
    most = std::min(most, least);
    return CL_SUCCESS;
}

/* Put the driver's object in place of a handle. */
static cl_int translate(Argument &given, const void **value, void **real) {
    const void *handle = *static_cast<void *const *>(*value);
    Slot *slot = nullptr;
    if (given.is != Argument::sampler) slot = find_slot(handle, Kind::memory);
    if (slot) given.is = Argument::memory;
    if (!slot && given.is != Argument::memory) slot = find_slot(handle, Kind::sampler);
    if (slot && slot->kind.load(std::memory_order_relaxed) == Kind::sampler) given.is = Argument::sampler;
    if (!slot) {
        if (given.is == Argument::unknown) given.is = Argument::value; /* an object passed by value, so it seems */
        return given.is == Argument::value || !handle ? CL_SUCCESS : CL_INVALID_MEM_OBJECT;
    }
    given.slot = slot;
    given.generation = slot->generation;
    *real = slot->object->real;
    *value = real;
    return CL_SUCCESS;
}

cl_int CL_API_CALL layer_clSetKernelArg(cl_kernel kernel, cl_uint index, size_t size, const void *value) {
    Inside inside;
    Kernel *own = get<Kernel>(kernel);
    if (!own) return CL_INVALID_KERNEL;
    if (index >= own->arguments.size()) return CL_INVALID_ARG_INDEX;
    Locked guard(own->lock);
    Argument &argument = own->arguments[index];
    if (argument.is == Argument::value && value && argument.bytes.size() == size) { /* the usual case */
        cl_int error = target->clSetKernelArg(real_of(own), index, size, value);
        if (error != CL_SUCCESS) return error;
        argument.set = true;
        argument.size = size;
        memcpy(argument.bytes.data(), value, size);
        return CL_SUCCESS;
    }
    Argument given;
    given.is = argument.is;
    given.writes = argument.writes;
    given.size = size;
    given.set = true;
    void *real;
    const void *passed = value;
    if (value && size == sizeof(void *) && given.is != Argument::value && given.is != Argument::local)
        if (cl_int error = translate(given, &passed, &real)) return error;
    cl_int error = target->clSetKernelArg(real_of(own), index, size, passed);
    if (error != CL_SUCCESS) return error;
    if (value && !given.slot) given.bytes.assign(static_cast<const char *>(value), size);
    if (argument.is == Argument::unknown) given.is = Argument::unknown; /* the next value tells of itself */
    argument = std::move(given);
    touch(argument); /* another thread may be launching the kernel */
    return CL_SUCCESS;
}

void touch_arguments(Kernel *kernel) {
    Locked guard(kernel->lock);
    for (auto &argument : kernel->arguments) touch(argument);
}

std::vector<Argument> arguments_of(Kernel &kernel) {
    Locked guard(kernel.lock);
    return kernel.arguments;
}

/* Set the arguments of the successor of a kernel; those that name objects now gone stay unset. */
cl_int set_arguments(const Kernel &kernel) {
    cl_kernel next = next_of(&kernel);
    for (cl_uint i = 0; i < kernel.arguments.size(); i++) {
        const Argument &a = kernel.arguments[i];
        if (!a.set) continue;
        cl_int error;
        if (a.slot) {
            Kind kind = a.slot->kind.load(std::memory_order_acquire);
            if (a.slot->generation != a.generation || (kind != Kind::memory && kind != Kind::sampler)) continue;
            void *object = a.slot->object->next;
            error = target->clSetKernelArg(next, i, sizeof(void *), &object);
        } else {
            error = target->clSetKernelArg(next, i, a.size, a.bytes.empty() ? nullptr : a.bytes.data());
        }
        if (error != CL_SUCCESS) return error;
    }
    return CL_SUCCESS;
}

cl_int CL_API_CALL layer_clGetKernelInfo(cl_kernel kernel, cl_kernel_info what, size_t size, void *value,
                                         size_t *size_ret) {
    Inside inside;
    Kernel *own = get<Kernel>(kernel);
    if (!own) return CL_INVALID_KERNEL;
    switch (what) {
    case CL_KERNEL_REFERENCE_COUNT: return answer(cl_uint(own->slot->retained.load()), size, value, size_ret);
    case CL_KERNEL_CONTEXT: return answer(handle_of(own->program->context.get()), size, value, size_ret);
    case CL_KERNEL_PROGRAM: return answer(handle_of(own->program.get()), size, value, size_ret);
    default: return target->clGetKernelInfo(real_of(own), what, size, value, size_ret);
    }
}

} // namespace tenbin
