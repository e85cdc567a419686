/* An OpenCL layer whose kernels and copies begin when somebody waits for an event, and whose clFinish does not wait: it
 * returns while they are queued, as that of Mesa's rusticl 22.3 does after a clFlush. */
#include "layer.h"
#include <pthread.h>

enum { MOST = 4096 };
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static cl_event gates[MOST];
static int queued;

/* Give what a command waits for, and after that a gate, in `all`; with the lock held. */
static cl_int hold_back(cl_command_queue queue, cl_uint n, const cl_event *waits, cl_event all[64]) {
    cl_context context;
    cl_int error = CL_OUT_OF_RESOURCES;
    target->clGetCommandQueueInfo(queue, CL_QUEUE_CONTEXT, sizeof context, &context, NULL);
    if (queued == MOST || n >= 64) return error;
    all[n] = gates[queued] = target->clCreateUserEvent(context, &error);
    if (error == CL_SUCCESS) queued++;
    if (n) memcpy(all, waits, n * sizeof *waits);
    return error;
}

static void let_all_go(void) {
    pthread_mutex_lock(&lock);
    while (queued) {
        cl_event gate = gates[--queued];
        target->clSetUserEventStatus(gate, CL_COMPLETE);
        target->clReleaseEvent(gate);
    }
    pthread_mutex_unlock(&lock);
}

static cl_int CL_API_CALL run_kernel(cl_command_queue queue, cl_kernel kernel, cl_uint dimensions,
                                     const size_t *offset, const size_t *global, const size_t *local, cl_uint n,
                                     const cl_event *waits, cl_event *event) {
    cl_event all[64];
    pthread_mutex_lock(&lock);
    cl_int error = hold_back(queue, n, waits, all);
    if (error == CL_SUCCESS)
        error = target->clEnqueueNDRangeKernel(queue, kernel, dimensions, offset, global, local, n + 1, all, event);
    pthread_mutex_unlock(&lock);
    return error;
}

static cl_int CL_API_CALL read_buffer(cl_command_queue queue, cl_mem buffer, cl_bool blocking, size_t offset,
                                      size_t size, void *to, cl_uint n, const cl_event *waits, cl_event *event) {
    cl_event all[64];
    if (blocking) {
        let_all_go();
        return target->clEnqueueReadBuffer(queue, buffer, blocking, offset, size, to, n, waits, event);
    }
    pthread_mutex_lock(&lock);
    cl_int error = hold_back(queue, n, waits, all);
    if (error == CL_SUCCESS)
        error = target->clEnqueueReadBuffer(queue, buffer, blocking, offset, size, to, n + 1, all, event);
    pthread_mutex_unlock(&lock);
    return error;
}

static cl_int CL_API_CALL wait_for(cl_uint n, const cl_event *events) {
    let_all_go();
    return target->clWaitForEvents(n, events);
}

static cl_int CL_API_CALL finish(cl_command_queue queue) { return target->clFlush(queue); }

static void change_calls(void) {
    table.clEnqueueNDRangeKernel = run_kernel;
    table.clEnqueueReadBuffer = read_buffer;
    table.clWaitForEvents = wait_for;
    table.clFinish = finish;
}
