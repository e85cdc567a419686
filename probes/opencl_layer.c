/* An OpenCL layer that counts: kernels run, memory of a device, time spent building programs and waiting in
 * clFinish. The program knows nothing of it.
 *
 * The counts lie in a file of their own for each process, TENBIN_LAYER_FOLDER/PID, mapped into its memory: they are
 * there however it ends. probes/c_library.py reads it; keep the two alike. */
#define CL_TARGET_OPENCL_VERSION 300
#include <CL/cl_icd.h>
#include <CL/cl_layer.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

typedef struct {
    uint64_t live, peak;              /* bytes in buffers and images */
    uint64_t objects, kernels, builds, finishes;
    double build_s, finish_s, longest_finish_s;
} counts;

static cl_icd_dispatch table;
static const cl_icd_dispatch *target;
static counts nowhere, *seen = &nowhere;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static double now_s(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec + 1e-9 * now.tv_nsec;
}

static void CL_CALLBACK forget(cl_mem object, void *size) {
    (void)object;
    pthread_mutex_lock(&lock);
    seen->live -= (uintptr_t)size;
    pthread_mutex_unlock(&lock);
}

/* Count a new object; the driver tells when it is gone, which may be after its release. */
static cl_mem kept(cl_mem object) {
    size_t size = 0;
    if (!object || target->clGetMemObjectInfo(object, CL_MEM_SIZE, sizeof(size), &size, NULL) != CL_SUCCESS)
        return object;
    pthread_mutex_lock(&lock);
    seen->objects++;
    seen->live += size;
    if (seen->live > seen->peak) seen->peak = seen->live;
    pthread_mutex_unlock(&lock);
    target->clSetMemObjectDestructorCallback(object, forget, (void *)(uintptr_t)size);
    return object;
}

static cl_mem CL_API_CALL create_buffer(cl_context context, cl_mem_flags flags, size_t size, void *host, cl_int *error) {
    return kept(target->clCreateBuffer(context, flags, size, host, error));
}

static cl_mem CL_API_CALL create_buffer_with(cl_context context, const cl_mem_properties *properties, cl_mem_flags flags,
                                             size_t size, void *host, cl_int *error) {
    return kept(target->clCreateBufferWithProperties(context, properties, flags, size, host, error));
}

static cl_mem CL_API_CALL create_image(cl_context context, cl_mem_flags flags, const cl_image_format *format,
                                       const cl_image_desc *about, void *host, cl_int *error) {
    return kept(target->clCreateImage(context, flags, format, about, host, error));
}

static cl_int CL_API_CALL run_kernel(cl_command_queue queue, cl_kernel kernel, cl_uint dimensions, const size_t *offset,
                                     const size_t *global, const size_t *local, cl_uint n, const cl_event *waits,
                                     cl_event *event) {
    __atomic_fetch_add(&seen->kernels, 1, __ATOMIC_RELAXED);
    return target->clEnqueueNDRangeKernel(queue, kernel, dimensions, offset, global, local, n, waits, event);
}

static void built(double began) {
    pthread_mutex_lock(&lock);
    seen->builds++;
    seen->build_s += now_s() - began;
    pthread_mutex_unlock(&lock);
}

static cl_int CL_API_CALL build_program(cl_program program, cl_uint n, const cl_device_id *devices, const char *options,
                                        void(CL_CALLBACK *notify)(cl_program, void *), void *data) {
    double began = now_s();
    cl_int error = target->clBuildProgram(program, n, devices, options, notify, data);
    built(began);
    return error;
}

static cl_int CL_API_CALL compile_program(cl_program program, cl_uint n, const cl_device_id *devices, const char *options,
                                          cl_uint headers, const cl_program *header, const char **names,
                                          void(CL_CALLBACK *notify)(cl_program, void *), void *data) {
    double began = now_s();
    cl_int error = target->clCompileProgram(program, n, devices, options, headers, header, names, notify, data);
    built(began);
    return error;
}

static cl_int CL_API_CALL finish(cl_command_queue queue) {
    double began = now_s();
    cl_int error = target->clFinish(queue);
    double took = now_s() - began;
    pthread_mutex_lock(&lock);
    seen->finishes++;
    seen->finish_s += took;
    if (took > seen->longest_finish_s) seen->longest_finish_s = took;
    pthread_mutex_unlock(&lock);
    return error;
}

static void open_counts(const char *folder) {
    char path[4096];
    snprintf(path, sizeof(path), "%s/%d", folder, (int)getpid());
    int file = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (file < 0) return;
    if (ftruncate(file, sizeof(counts)) == 0) {
        void *there = mmap(NULL, sizeof(counts), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
        if (there != MAP_FAILED) seen = there;
    }
    close(file);
}

cl_int CL_API_CALL clGetLayerInfo(cl_layer_info name, size_t size, void *value, size_t *size_ret) {
    if (name != CL_LAYER_API_VERSION) return CL_INVALID_VALUE;
    if (value && size >= sizeof(cl_layer_api_version)) *(cl_layer_api_version *)value = CL_LAYER_API_VERSION_100;
    if (size_ret) *size_ret = sizeof(cl_layer_api_version);
    return CL_SUCCESS;
}

cl_int CL_API_CALL clInitLayer(cl_uint n, const cl_icd_dispatch *dispatch, cl_uint *n_ret,
                               const cl_icd_dispatch **layer) {
    const char *folder = getenv("TENBIN_LAYER_FOLDER");
    if (n < sizeof(table) / sizeof(dispatch->clGetPlatformIDs)) return CL_INVALID_VALUE;
    target = dispatch;
    table = *dispatch;
    if (folder) {
        open_counts(folder);
        table.clCreateBuffer = create_buffer;
        table.clCreateBufferWithProperties = create_buffer_with;
        table.clCreateImage = create_image;
        table.clEnqueueNDRangeKernel = run_kernel;
        table.clBuildProgram = build_program;
        table.clCompileProgram = compile_program;
        table.clFinish = finish;
    }
    *n_ret = sizeof(table) / sizeof(dispatch->clGetPlatformIDs);
    *layer = &table;
    return CL_SUCCESS;
}
