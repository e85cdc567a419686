/* An OpenCL layer whose callbacks of events come late, one after the other, from one thread: LATE_MS after the
 * event, and never once the event has been released for the last time. */
#include "layer.h"
#include <pthread.h>
#include <time.h>

typedef struct callback {
    struct callback *next;
    cl_event event; /* none: it is gone */
    cl_int status;
    void(CL_CALLBACK *notify)(cl_event, cl_int, void *);
    void *data;
} callback;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of these lists */
static callback *waiting, *due, **last_due = &due;

static void *call_back(void *unused) {
    (void)unused;
    const char *given = getenv("LATE_MS");
    struct timespec late = {0, 1000000L * (given ? atol(given) : 20)};
    for (;;) {
        nanosleep(&late, NULL);
        pthread_mutex_lock(&lock);
        callback *next = due;
        if (next && !(due = next->next)) last_due = &due;
        cl_event event = next ? next->event : NULL;
        pthread_mutex_unlock(&lock);
        if (event) next->notify(event, next->status, next->data);
        free(next);
    }
    return NULL;
}

static void CL_CALLBACK has_come(cl_event event, cl_int status, void *data) {
    (void)event;
    callback *one = data, **place;
    pthread_mutex_lock(&lock);
    for (place = &waiting; *place != one; place = &(*place)->next)
        ;
    *place = one->next;
    one->next = NULL;
    one->status = status;
    *last_due = one;
    last_due = &one->next;
    pthread_mutex_unlock(&lock);
}

static cl_int CL_API_CALL set_callback(cl_event event, cl_int type, void(CL_CALLBACK *notify)(cl_event, cl_int, void *),
                                       void *data) {
    callback *one = calloc(1, sizeof *one);
    one->event = event;
    one->notify = notify;
    one->data = data;
    pthread_mutex_lock(&lock);
    one->next = waiting;
    waiting = one;
    pthread_mutex_unlock(&lock);
    return target->clSetEventCallback(event, type, has_come, one);
}

static cl_int CL_API_CALL release(cl_event event) {
    cl_uint held = 0;
    target->clGetEventInfo(event, CL_EVENT_REFERENCE_COUNT, sizeof held, &held, NULL);
    pthread_mutex_lock(&lock);
    callback *lists[] = {waiting, due};
    for (int i = 0; held == 1 && i < 2; i++)
        for (callback *one = lists[i]; one; one = one->next)
            if (one->event == event) one->event = NULL;
    pthread_mutex_unlock(&lock);
    return target->clReleaseEvent(event);
}

static void change_calls(void) {
    pthread_t thread;
    pthread_create(&thread, NULL, call_back, NULL);
    pthread_detach(thread);
    table.clSetEventCallback = set_callback;
    table.clReleaseEvent = release;
}
