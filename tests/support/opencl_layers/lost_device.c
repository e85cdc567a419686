/* An OpenCL layer whose devices are lost after LOST_AFTER reads: every further read fails with LOST_ERROR. */
#include "layer.h"

static int reads;

static cl_int CL_API_CALL read_buffer(cl_command_queue queue, cl_mem buffer, cl_bool blocking, size_t offset,
                                      size_t size, void *to, cl_uint n, const cl_event *waits, cl_event *event) {
    if (++reads > atoi(getenv("LOST_AFTER"))) return atoi(getenv("LOST_ERROR"));
    return target->clEnqueueReadBuffer(queue, buffer, blocking, offset, size, to, n, waits, event);
}

static void change_calls(void) { table.clEnqueueReadBuffer = read_buffer; }
