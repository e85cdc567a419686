/* An OpenCL layer whose calls wait where those of another driver might; BLOCKS says which.
 *
 * unset: blocking reads and writes, and maps, while any command waits for a user event that is not set.
 * queue: also writes that should not block, while a command of their queue waits for such an event.
 * order: a flush, while a command of its queue waits for one of another queue that was not flushed. */
#include "layer.h"
#include <pthread.h>

enum { MOST = 1 << 16 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of all that follows */
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;

static struct {
    cl_event event;
    cl_command_queue queue; /* none: a user event */
    int is_open;            /* a user event that is not set, or a command that was not flushed */
} known[MOST];

static struct {
    cl_command_queue queue;
    int of; /* a command of the queue waits for that one of `known` */
} behind[MOST];

static int n_known, n_behind;

static void note(cl_event event, cl_command_queue queue) {
    pthread_mutex_lock(&lock);
    known[n_known].event = event;
    known[n_known].queue = queue;
    known[n_known++].is_open = 1;
    pthread_mutex_unlock(&lock);
}

static void note_waits(cl_command_queue queue, cl_uint n, const cl_event *waits) {
    pthread_mutex_lock(&lock);
    for (cl_uint i = 0; i < n; i++)
        for (int at = n_known; at-- > 0;) {
            if (known[at].event != waits[i]) continue;
            behind[n_behind].queue = queue;
            behind[n_behind++].of = at;
            break;
        }
    pthread_mutex_unlock(&lock);
}

/* Of user events, or of commands in other queues than this one; no queue: behind which some command of any waits. */
static int is_behind(cl_command_queue queue, int user) {
    for (int i = 0; i < n_behind; i++) {
        int of = behind[i].of;
        if (!known[of].is_open || user != !known[of].queue || (queue && behind[i].queue != queue)) continue;
        if (user || known[of].queue != queue) return 1;
    }
    return 0;
}

static void wait_behind(cl_command_queue queue, int user) {
    pthread_mutex_lock(&lock);
    while (is_behind(queue, user)) pthread_cond_wait(&changed, &lock);
    pthread_mutex_unlock(&lock);
}

static int has(const char *word) {
    const char *given = getenv("BLOCKS");
    return given && strcmp(given, word) == 0;
}

static cl_event CL_API_CALL create_event(cl_context context, cl_int *error) {
    cl_event made = target->clCreateUserEvent(context, error);
    if (made) note(made, NULL);
    return made;
}

static cl_int CL_API_CALL set_event(cl_event event, cl_int status) {
    cl_int error = target->clSetUserEventStatus(event, status);
    pthread_mutex_lock(&lock);
    for (int i = 0; i < n_known; i++)
        if (known[i].event == event && !known[i].queue) known[i].is_open = 0;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
    return error;
}

static cl_int CL_API_CALL run_kernel(cl_command_queue queue, cl_kernel kernel, cl_uint dimensions,
                                     const size_t *offset, const size_t *global, const size_t *local, cl_uint n,
                                     const cl_event *waits, cl_event *event) {
    note_waits(queue, n, waits);
    cl_int error = target->clEnqueueNDRangeKernel(queue, kernel, dimensions, offset, global, local, n, waits, event);
    if (event && error == CL_SUCCESS) note(*event, queue);
    return error;
}

static cl_int CL_API_CALL mark(cl_command_queue queue, cl_uint n, const cl_event *waits, cl_event *event) {
    note_waits(queue, n, waits);
    cl_int error = target->clEnqueueMarkerWithWaitList(queue, n, waits, event);
    if (event && error == CL_SUCCESS) note(*event, queue);
    return error;
}

static cl_int CL_API_CALL flush(cl_command_queue queue) {
    if (has("order")) wait_behind(queue, 0);
    pthread_mutex_lock(&lock);
    for (int i = 0; i < n_known; i++)
        if (known[i].queue == queue) known[i].is_open = 0;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
    return target->clFlush(queue);
}

static cl_int CL_API_CALL read_buffer(cl_command_queue queue, cl_mem buffer, cl_bool blocking, size_t offset,
                                      size_t size, void *to, cl_uint n, const cl_event *waits, cl_event *event) {
    if (has("unset") && blocking) wait_behind(NULL, 1);
    return target->clEnqueueReadBuffer(queue, buffer, blocking, offset, size, to, n, waits, event);
}

static cl_int CL_API_CALL write_buffer(cl_command_queue queue, cl_mem buffer, cl_bool blocking, size_t offset,
                                       size_t size, const void *from, cl_uint n, const cl_event *waits,
                                       cl_event *event) {
    if (has("unset") && blocking) wait_behind(NULL, 1);
    if (has("queue")) wait_behind(queue, 1);
    return target->clEnqueueWriteBuffer(queue, buffer, blocking, offset, size, from, n, waits, event);
}

static void *CL_API_CALL map_buffer(cl_command_queue queue, cl_mem buffer, cl_bool blocking, cl_map_flags flags,
                                    size_t offset, size_t size, cl_uint n, const cl_event *waits, cl_event *event,
                                    cl_int *error) {
    if (has("unset") && blocking) wait_behind(NULL, 1);
    return target->clEnqueueMapBuffer(queue, buffer, blocking, flags, offset, size, n, waits, event, error);
}

static void change_calls(void) {
    table.clCreateUserEvent = create_event;
    table.clSetUserEventStatus = set_event;
    table.clEnqueueNDRangeKernel = run_kernel;
    table.clEnqueueMarkerWithWaitList = mark;
    table.clFlush = flush;
    table.clEnqueueReadBuffer = read_buffer;
    table.clEnqueueWriteBuffer = write_buffer;
    table.clEnqueueMapBuffer = map_buffer;
}
