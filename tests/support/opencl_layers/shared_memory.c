/* An OpenCL layer of devices that share MEMORY_BYTES: buffers that do not fit beside the others are refused. */
#include "layer.h"
#include <stdatomic.h>

static atomic_long used;

static cl_mem CL_API_CALL create(cl_context context, cl_mem_flags flags, size_t bytes, void *host, cl_int *error) {
    cl_int unheard, *told = error ? error : &unheard;
    *told = CL_MEM_OBJECT_ALLOCATION_FAILURE;
    if (used + (long)bytes > atol(getenv("MEMORY_BYTES"))) return NULL;
    cl_mem made = target->clCreateBuffer(context, flags, bytes, host, told);
    if (made) used += (long)bytes;
    return made;
}

static cl_int CL_API_CALL release(cl_mem memory) {
    cl_uint references = 0;
    cl_mem_object_type type = 0;
    cl_mem whole = NULL;
    size_t bytes = 0;
    target->clGetMemObjectInfo(memory, CL_MEM_REFERENCE_COUNT, sizeof references, &references, NULL);
    target->clGetMemObjectInfo(memory, CL_MEM_TYPE, sizeof type, &type, NULL);
    target->clGetMemObjectInfo(memory, CL_MEM_ASSOCIATED_MEMOBJECT, sizeof whole, &whole, NULL);
    target->clGetMemObjectInfo(memory, CL_MEM_SIZE, sizeof bytes, &bytes, NULL);
    if (references == 1 && type == CL_MEM_OBJECT_BUFFER && !whole) used -= (long)bytes;
    return target->clReleaseMemObject(memory);
}

static void change_calls(void) {
    table.clCreateBuffer = create;
    table.clReleaseMemObject = release;
}
