/* What every OpenCL layer is; one that includes this defines ``change_calls``, which puts its own functions into
 * ``table``. Those of the layer below are in ``target``. */
#define CL_TARGET_OPENCL_VERSION 300
#include <CL/cl_icd.h>
#include <CL/cl_layer.h>
#include <stdlib.h>
#include <string.h>

static cl_icd_dispatch table;
static const cl_icd_dispatch *target;

static void change_calls(void);

/* The second device of its platform. */
static inline int is_second(cl_device_id device) {
    cl_platform_id platform;
    cl_device_id all[2];
    cl_uint n = 0;
    target->clGetDeviceInfo(device, CL_DEVICE_PLATFORM, sizeof platform, &platform, NULL);
    return target->clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, 2, all, &n) == CL_SUCCESS && n > 1 &&
           all[1] == device;
}

cl_int CL_API_CALL clGetLayerInfo(cl_layer_info name, size_t size, void *value, size_t *size_ret) {
    if (name != CL_LAYER_API_VERSION) return CL_INVALID_VALUE;
    if (value && size >= sizeof(cl_layer_api_version)) *(cl_layer_api_version *)value = CL_LAYER_API_VERSION_100;
    if (size_ret) *size_ret = sizeof(cl_layer_api_version);
    return CL_SUCCESS;
}

cl_int CL_API_CALL clInitLayer(cl_uint n, const cl_icd_dispatch *dispatch, cl_uint *n_ret,
                               const cl_icd_dispatch **layer) {
    const cl_uint entries = sizeof(table) / sizeof(void *);
    target = dispatch;
    *n_ret = n < entries ? n : entries; /* the loader may be older than the headers */
    memcpy(&table, dispatch, *n_ret * sizeof(void *));
    change_calls();
    *layer = &table;
    return CL_SUCCESS;
}
