/* An OpenCL layer that makes devices slower: after each kernel it sleeps so long that SLOW_BY times the
 * processor time of the kernel has passed.
 *
 * SLOW_BY is a list, one factor for each device ("4,12"); TENBIN_DEVICE says which device the process uses. The
 * sleep takes nothing from who runs beside it. */
#include "layer.h"
#include <time.h>

#define SHORTEST_SLEEP_S 0.002

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

static void change_calls(void) {
    const char *here = getenv("TENBIN_DEVICE"), *by = getenv("SLOW_BY");
    for (int skip = here ? atoi(here) : 0; by && skip; --skip) by = (by = strchr(by, ',')) ? by + 1 : NULL;
    if (here && by && (factor = atof(by)) > 1) table.clEnqueueNDRangeKernel = run_kernel;
}
