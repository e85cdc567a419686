/* An OpenCL layer whose kernels begin when somebody waits for an event, and whose clFinish does not: it returns while
 * they are queued, as that of Mesa's rusticl 22.3 does after a clFlush. */
#include "layer.h"
#include <pthread.h>

enum { MOST = 4096 };
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static cl_event gates[MOST];
static int queued;

static cl_int CL_API_CALL run_kernel(cl_command_queue queue, cl_kernel kernel, cl_uint dimensions,
                                     const size_t *offset, const size_t *global, const size_t *local, cl_uint n,
                                     const cl_event *waits, cl_event *event) {
    cl_context context;
    cl_event all[64];
    cl_int error = CL_OUT_OF_RESOURCES;
    target->clGetCommandQueueInfo(queue, CL_QUEUE_CONTEXT, sizeof context, &context, NULL);
    pthread_mutex_lock(&lock);
    if (queued < MOST && n < 64) all[n] = gates[queued] = target->clCreateUserEvent(context, &error);
    if (error == CL_SUCCESS) {
        queued++;
        if (n) memcpy(all, waits, n * sizeof *waits);
        error = target->clEnqueueNDRangeKernel(queue, kernel, dimensions, offset, global, local, n + 1, all, event);
    }
    pthread_mutex_unlock(&lock);
    return error;
}

static cl_int CL_API_CALL wait_for(cl_uint n, const cl_event *events) {
    pthread_mutex_lock(&lock);
    while (queued) {
        cl_event gate = gates[--queued];
        target->clSetUserEventStatus(gate, CL_COMPLETE);
        target->clReleaseEvent(gate);
    }
    pthread_mutex_unlock(&lock);
    return target->clWaitForEvents(n, events);
}

static cl_int CL_API_CALL finish(cl_command_queue queue) { return target->clFlush(queue); }

static void change_calls(void) {
    table.clEnqueueNDRangeKernel = run_kernel;
    table.clWaitForEvents = wait_for;
    table.clFinish = finish;
}
