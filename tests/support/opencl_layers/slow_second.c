/* An OpenCL layer that makes devices slower: it sleeps after each kernel.
 *
 * SLOW_BY: the second device of the platform is so many times slower. Or LAUNCH_MS="a,b,c,d": a launch of n times
 * 65536 work-items takes a + b n ms on the first device and c + d n ms on the second, however busy the machine is.
 * WAKE_MS="a,b": who waits for work on the first device wakes a ms after its end, on the second device b ms.
 * Programs are built there with -D SECOND, so that a kernel can give other results on it. */
#include "layer.h"
#include <stdio.h>
#include <time.h>

static double now_s(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec + 1e-9 * now.tv_nsec;
}

static void sleep_s(double rest) {
    struct timespec span = {(time_t)rest, (long)(1e9 * (rest - (time_t)rest))};
    if (rest > 0) nanosleep(&span, NULL);
}

static void wake_late(cl_command_queue queue) {
    cl_device_id device;
    double ms[2] = {0};
    if (!queue || sscanf(getenv("WAKE_MS"), "%lf,%lf", ms, ms + 1) != 2) return;
    target->clGetCommandQueueInfo(queue, CL_QUEUE_DEVICE, sizeof device, &device, NULL);
    sleep_s(1e-3 * ms[is_second(device)]);
}

static cl_int CL_API_CALL finish(cl_command_queue queue) {
    cl_int error = target->clFinish(queue);
    wake_late(queue);
    return error;
}

static cl_int CL_API_CALL wait_for(cl_uint n, const cl_event *events) {
    cl_int error = target->clWaitForEvents(n, events);
    cl_command_queue queue = NULL;
    target->clGetEventInfo(events[0], CL_EVENT_COMMAND_QUEUE, sizeof queue, &queue, NULL);
    wake_late(queue);
    return error;
}

static cl_int CL_API_CALL run_kernel(cl_command_queue queue, cl_kernel kernel, cl_uint dimensions,
                                     const size_t *offset, const size_t *global, const size_t *local, cl_uint n,
                                     const cl_event *waits, cl_event *event) {
    cl_device_id device;
    target->clGetCommandQueueInfo(queue, CL_QUEUE_DEVICE, sizeof device, &device, NULL);
    int second = is_second(device);
    const char *given = getenv("LAUNCH_MS"), *by = getenv("SLOW_BY");
    if (!given && !second)
        return target->clEnqueueNDRangeKernel(queue, kernel, dimensions, offset, global, local, n, waits, event);
    target->clFinish(queue);
    double began = now_s(), ms[4] = {0};
    cl_int error = target->clEnqueueNDRangeKernel(queue, kernel, dimensions, offset, global, local, n, waits, event);
    target->clFinish(queue);
    double took = now_s() - began, rest = by ? (atof(by) - 1) * took : 0;
    if (given && sscanf(given, "%lf,%lf,%lf,%lf", ms, ms + 1, ms + 2, ms + 3) == 4)
        rest = 1e-3 * (ms[2 * second] + ms[2 * second + 1] * global[0] / 65536) - took;
    sleep_s(rest);
    return error;
}

static cl_int CL_API_CALL build(cl_program program, cl_uint n, const cl_device_id *devices, const char *options,
                                void(CL_CALLBACK *notify)(cl_program, void *), void *data) {
    char more[4096];
    snprintf(more, sizeof more, "%s%s", options ? options : "", n && is_second(devices[0]) ? " -D SECOND" : "");
    return target->clBuildProgram(program, n, devices, more, notify, data);
}

static void change_calls(void) {
    table.clBuildProgram = build;
    if (getenv("WAKE_MS")) {
        table.clFinish = finish;
        table.clWaitForEvents = wait_for;
    }
    if (getenv("SLOW_BY") || getenv("LAUNCH_MS")) table.clEnqueueNDRangeKernel = run_kernel;
}
