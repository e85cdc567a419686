/* An OpenCL layer whose devices are lost after LOST_AFTER reads: every further read fails with LOST_ERROR. */
#define CL_TARGET_OPENCL_VERSION 300
#include <CL/cl_icd.h>
#include <CL/cl_layer.h>
#include <stdlib.h>

static cl_icd_dispatch table;
static const cl_icd_dispatch *target;
static int reads;

static cl_int CL_API_CALL read_buffer(cl_command_queue queue, cl_mem buffer, cl_bool blocking, size_t offset,
                                      size_t size, void *to, cl_uint n, const cl_event *waits, cl_event *event) {
    if (++reads > atoi(getenv("LOST_AFTER"))) return atoi(getenv("LOST_ERROR"));
    return target->clEnqueueReadBuffer(queue, buffer, blocking, offset, size, to, n, waits, event);
}

cl_int CL_API_CALL clGetLayerInfo(cl_layer_info name, size_t size, void *value, size_t *size_ret) {
    if (name != CL_LAYER_API_VERSION) return CL_INVALID_VALUE;
    if (value && size >= sizeof(cl_layer_api_version)) *(cl_layer_api_version *)value = CL_LAYER_API_VERSION_100;
    if (size_ret) *size_ret = sizeof(cl_layer_api_version);
    return CL_SUCCESS;
}

cl_int CL_API_CALL clInitLayer(cl_uint n, const cl_icd_dispatch *dispatch, cl_uint *n_ret,
                               const cl_icd_dispatch **layer) {
    if (n < sizeof(table) / sizeof(dispatch->clGetPlatformIDs)) return CL_INVALID_VALUE;
    target = dispatch;
    table = *dispatch;
    table.clEnqueueReadBuffer = read_buffer;
    *n_ret = sizeof(table) / sizeof(dispatch->clGetPlatformIDs);
    *layer = &table;
    return CL_SUCCESS;
}
