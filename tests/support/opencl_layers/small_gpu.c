/* An OpenCL layer that makes the second device of the platform a GPU of small work-groups: 64 items at most, of the
 * kernel "large" 16, and with FULL no memory at all. On SIGURG it writes to the file CONTEXTS how many references others hold to contexts there. */
#include "layer.h"
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <unistd.h>

enum { MOST = 256, GROUP = 64, LARGE = 16 };
static cl_context contexts[MOST];
static int made;

static size_t most_of(cl_kernel kernel) {
    char name[64] = "";
    target->clGetKernelInfo(kernel, CL_KERNEL_FUNCTION_NAME, sizeof name, name, NULL);
    return strcmp(name, "large") ? GROUP : LARGE;
}

static cl_int CL_API_CALL device_info(cl_device_id device, cl_device_info name, size_t size, void *value,
                                      size_t *size_ret) {
    cl_int error = target->clGetDeviceInfo(device, name, size, value, size_ret);
    if (error != CL_SUCCESS || !value || !is_second(device)) return error;
    if (name == CL_DEVICE_TYPE) *(cl_device_type *)value = CL_DEVICE_TYPE_GPU;
    if (name == CL_DEVICE_MAX_WORK_GROUP_SIZE) *(size_t *)value = GROUP;
    return error;
}

static cl_int CL_API_CALL group_info(cl_kernel kernel, cl_device_id device, cl_kernel_work_group_info name,
                                     size_t size, void *value, size_t *size_ret) {
    cl_int error = target->clGetKernelWorkGroupInfo(kernel, device, name, size, value, size_ret);
    if (error == CL_SUCCESS && value && name == CL_KERNEL_WORK_GROUP_SIZE && device && is_second(device))
        *(size_t *)value = most_of(kernel);
    return error;
}

static cl_int CL_API_CALL run_kernel(cl_command_queue queue, cl_kernel kernel, cl_uint dimensions,
                                     const size_t *offset, const size_t *global, const size_t *local, cl_uint n,
                                     const cl_event *waits, cl_event *event) {
    cl_device_id device;
    target->clGetCommandQueueInfo(queue, CL_QUEUE_DEVICE, sizeof device, &device, NULL);
    if (local && local[0] > most_of(kernel) && is_second(device)) return CL_INVALID_WORK_GROUP_SIZE;
    return target->clEnqueueNDRangeKernel(queue, kernel, dimensions, offset, global, local, n, waits, event);
}

static cl_context CL_API_CALL make_context(const cl_context_properties *properties, cl_uint n,
                                           const cl_device_id *devices,
                                           void(CL_CALLBACK *notify)(const char *, const void *, size_t, void *),
                                           void *data, cl_int *error) {
    cl_context context = target->clCreateContext(properties, n, devices, notify, data, error);
    if (context && n == 1 && is_second(devices[0]) && made < MOST) {
        target->clRetainContext(context);
        contexts[made++] = context;
    }
    return context;
}

static cl_mem CL_API_CALL make_buffer(cl_context context, cl_mem_flags flags, size_t size, void *host,
                                      cl_int *error) {
    cl_device_id device;
    target->clGetContextInfo(context, CL_CONTEXT_DEVICES, sizeof device, &device, NULL);
    if (!is_second(device)) return target->clCreateBuffer(context, flags, size, host, error);
    if (error) *error = CL_MEM_OBJECT_ALLOCATION_FAILURE;
    return NULL;
}

static void tell(int number) {
    cl_uint sum = 0;
    for (int i = 0; i < made; i++) {
        cl_uint references = 0;
        target->clGetContextInfo(contexts[i], CL_CONTEXT_REFERENCE_COUNT, sizeof references, &references, NULL);
        sum += references - 1; /* one is this layer's */
    }
    char text[32];
    int length = snprintf(text, sizeof text, "%u\n", sum), file = open(getenv("CONTEXTS"), O_WRONLY | O_CREAT, 0600);
    if (write(file, text, (size_t)length) != length) _exit(number);
    close(file);
}

static void change_calls(void) {
    table.clGetDeviceInfo = device_info;
    table.clGetKernelWorkGroupInfo = group_info;
    table.clEnqueueNDRangeKernel = run_kernel;
    table.clCreateContext = make_context;
    if (getenv("FULL")) table.clCreateBuffer = make_buffer;
    if (getenv("CONTEXTS")) signal(SIGURG, tell);
}
