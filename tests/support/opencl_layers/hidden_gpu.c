/* An OpenCL layer that makes PoCL's "basic" devices GPUs, which only a process sees that Slurm has given one
 * (SLURM_GPUS_ON_NODE): as a site does it that constrains devices by control groups. */
#include "layer.h"

#define MOST 64

static int is_gpu(cl_device_id device) {
    char name[256] = "";
    target->clGetDeviceInfo(device, CL_DEVICE_NAME, sizeof name - 1, name, NULL);
    return strstr(name, "basic") != NULL;
}

static cl_int CL_API_CALL device_ids(cl_platform_id platform, cl_device_type type, cl_uint n, cl_device_id *devices,
                                     cl_uint *n_ret) {
    cl_device_id all[MOST];
    cl_uint count = 0, kept = 0;
    cl_int error = target->clGetDeviceIDs(platform, type, MOST, all, &count);
    if (error != CL_SUCCESS) return error;
    for (cl_uint i = 0; i < count && i < MOST; ++i) {
        if (is_gpu(all[i]) && !getenv("SLURM_GPUS_ON_NODE")) continue;
        if (devices && kept < n) devices[kept] = all[i];
        ++kept;
    }
    if (n_ret) *n_ret = kept;
    return kept ? CL_SUCCESS : CL_DEVICE_NOT_FOUND;
}

static cl_int CL_API_CALL device_info(cl_device_id device, cl_device_info name, size_t size, void *value,
                                      size_t *size_ret) {
    cl_int error = target->clGetDeviceInfo(device, name, size, value, size_ret);
    if (error == CL_SUCCESS && name == CL_DEVICE_TYPE && value && is_gpu(device))
        *(cl_device_type *)value = CL_DEVICE_TYPE_GPU;
    return error;
}

static void change_calls(void) {
    table.clGetDeviceIDs = device_ids;
    table.clGetDeviceInfo = device_info;
}
