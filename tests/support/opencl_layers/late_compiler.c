/* An OpenCL layer whose compiler for the second device registers a handler for the end of the process at its first use,
 * as LLVM does, and aborts the process if that has run before it is done. It makes the file COMPILES, and takes
 * a second. */
#include "layer.h"
#include <fcntl.h>
#include <unistd.h>

static volatile int torn_down;

static void tear_down(void) { torn_down = 1; }

static cl_int CL_API_CALL build(cl_program program, cl_uint n, const cl_device_id *devices, const char *options,
                                void(CL_CALLBACK *notify)(cl_program, void *), void *data) {
    if (n && is_second(devices[0])) {
        atexit(tear_down);
        close(open(getenv("COMPILES"), O_WRONLY | O_CREAT, 0600));
        for (int i = 0; i < 100; i++) {
            if (torn_down) abort();
            usleep(10000);
        }
    }
    return target->clBuildProgram(program, n, devices, options, notify, data);
}

static void change_calls(void) { table.clBuildProgram = build; }
