/* An OpenCL layer that makes devices slower: after each kernel it sleeps so long that SLOW_BY times the
 * processor time of the kernel has passed.
 *
 * SLOW_BY is a list, one factor for each device ("4,12"); TENBIN_DEVICE says which device the process uses. The
 * sleep takes nothing from who runs beside it. */
#define CL_TARGET_OPENCL_VERSION 300
#include <CL/cl_icd.h>
#include <CL/cl_layer.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define SHORTEST_SLEEP_S 0.002

static cl_icd_dispatch table;
static const cl_icd_dispatch *target;
static double factor, owed_s;

static double now_s(clockid_t clock) {
    struct timespec now;
    clock_gettime(clock, &now);
    return now.tv_sec + 1e-9 * now.tv_nsec;
}

static cl_int CL_API_CALL run_kernel(cl_command_queue queue, cl_kernel kernel, cl_uint dimensions,
                                     const size_t *offset, const size_t *global, const size_t *local, cl_uint n,
                                     const cl_event *waits, cl_event *event) {
    double began = now_s(CLOCK_PROCESS_CPUTIME_ID);
    cl_int error = target->clEnqueueNDRangeKernel(queue, kernel, dimensions, offset, global, local, n, waits, event);
    if (error != CL_SUCCESS) return error;
    error = target->clFinish(queue);
    owed_s += (factor - 1) * (now_s(CLOCK_PROCESS_CPUTIME_ID) - began);
    if (owed_s > SHORTEST_SLEEP_S) {
        struct timespec span = {(time_t)owed_s, (long)(1e9 * (owed_s - (time_t)owed_s))};
        began = now_s(CLOCK_MONOTONIC);
        nanosleep(&span, NULL);
        owed_s -= now_s(CLOCK_MONOTONIC) - began;
    }
    return error;
}

cl_int CL_API_CALL clGetLayerInfo(cl_layer_info name, size_t size, void *value, size_t *size_ret) {
    if (name != CL_LAYER_API_VERSION) return CL_INVALID_VALUE;
    if (value && size >= sizeof(cl_layer_api_version)) *(cl_layer_api_version *)value = CL_LAYER_API_VERSION_100;
    if (size_ret) *size_ret = sizeof(cl_layer_api_version);
    return CL_SUCCESS;
}

cl_int CL_API_CALL clInitLayer(cl_uint n, const cl_icd_dispatch *dispatch, cl_uint *n_ret,
                               const cl_icd_dispatch **layer) {
    const char *here = getenv("TENBIN_DEVICE"), *by = getenv("SLOW_BY");
    if (n < sizeof(table) / sizeof(dispatch->clGetPlatformIDs)) return CL_INVALID_VALUE;
    target = dispatch;
    table = *dispatch;
    for (int skip = here ? atoi(here) : 0; by && skip; --skip) by = (by = strchr(by, ',')) ? by + 1 : NULL;
    if (here && by && (factor = atof(by)) > 1) {
        table.clEnqueueNDRangeKernel = run_kernel;
    }
    *n_ret = sizeof(table) / sizeof(dispatch->clGetPlatformIDs);
    *layer = &table;
    return CL_SUCCESS;
}
