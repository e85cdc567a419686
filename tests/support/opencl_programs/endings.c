/* Computes by OpenCL, prints "began" and then a sum, and ends as its first argument says:
 *   return      main() reads the result, prints it and returns
 *   handler     a handler of atexit() reads and prints it, called after all of OpenCL's
 *   destructor  so does a destructor of the program
 *   thread      a thread calls exit(), a handler reads and prints
 *   unload      main() prints, unloads the loader, stays as long again and returns
 * Further arguments: steps, and microseconds between them. */
#define CL_TARGET_OPENCL_VERSION 300
#include <CL/cl.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CALL(name) ((__typeof__(&name))dlsym(loader, #name))
#define MUST(call)                                                                                                     \
    do {                                                                                                               \
        cl_int error = (call);                                                                                         \
        if (error) fprintf(stderr, "%s: %d\n", #call, error), _exit(1);                                                \
    } while (0)

enum { N = 1 << 14 };
static const char *source = "__kernel void stir(__global const uint *from, __global uint *to, uint step) {\n"
                            "    size_t i = get_global_id(0), n = get_global_size(0);\n"
                            "    to[i] = from[i] * 1664525u + from[(i + 1) % n] + step;\n"
                            "}\n";
static void *loader;
static cl_command_queue queue;
static cl_mem buffers[2];
static const char *ending;
static int steps, pause_us;

static void print_sum(void) {
    static cl_uint values[N];
    unsigned long sum = 0;
    MUST(CALL(clEnqueueReadBuffer)(queue, buffers[steps % 2], CL_TRUE, 0, sizeof values, values, 0, NULL, NULL));
    for (int i = 0; i < N; i++) sum = sum * 31 + values[i];
    printf("%lx\n", sum);
    fflush(stdout);
}

static void print_if_last(void) {
    if (!strcmp(ending, "handler") || !strcmp(ending, "thread")) print_sum();
}

__attribute__((destructor)) static void end(void) {
    if (ending && !strcmp(ending, "destructor")) print_sum();
}

static void *leave(void *none) {
    (void)none;
    exit(0);
}

int main(int n, char **arguments) {
    static cl_uint values[N];
    cl_platform_id platform;
    cl_device_id device;
    cl_int error;
    if (n < 4) return 2;
    steps = atoi(arguments[2]), pause_us = atoi(arguments[3]);
    atexit(print_if_last); /* before any of OpenCL, so that it is called after theirs */
    ending = arguments[1];
    if (!(loader = dlopen("libOpenCL.so.1", RTLD_NOW))) return 3;
    MUST(CALL(clGetPlatformIDs)(1, &platform, NULL));
    MUST(CALL(clGetDeviceIDs)(platform, CL_DEVICE_TYPE_ALL, 1, &device, NULL));
    cl_context context = CALL(clCreateContext)(NULL, 1, &device, NULL, NULL, &error);
    MUST(error);
    queue = CALL(clCreateCommandQueueWithProperties)(context, device, NULL, &error);
    MUST(error);
    cl_program program = CALL(clCreateProgramWithSource)(context, 1, &source, NULL, &error);
    MUST(error);
    MUST(CALL(clBuildProgram)(program, 0, NULL, "", NULL, NULL));
    cl_kernel kernel = CALL(clCreateKernel)(program, "stir", &error);
    MUST(error);
    for (int i = 0; i < N; i++) values[i] = i;
    for (int i = 0; i < 2; i++) {
        buffers[i] = CALL(clCreateBuffer)(context, CL_MEM_COPY_HOST_PTR, sizeof values, values, &error);
        MUST(error);
    }
    printf("began\n");
    fflush(stdout);
    for (cl_uint step = 0; step < (cl_uint)steps; step++) {
        size_t size = N;
        MUST(CALL(clSetKernelArg)(kernel, 0, sizeof(cl_mem), &buffers[step % 2]));
        MUST(CALL(clSetKernelArg)(kernel, 1, sizeof(cl_mem), &buffers[(step + 1) % 2]));
        MUST(CALL(clSetKernelArg)(kernel, 2, sizeof step, &step));
        MUST(CALL(clEnqueueNDRangeKernel)(queue, kernel, 1, NULL, &size, NULL, 0, NULL, NULL));
        if (step % 7 == 6) MUST(CALL(clFlush)(queue));
        if (step % 5 == 4) MUST(CALL(clFinish)(queue));
        usleep(pause_us);
    }
    if (!strcmp(ending, "return") || !strcmp(ending, "unload")) print_sum();
    if (!strcmp(ending, "unload")) {
        dlclose(loader);
        for (int step = 0; step < steps; step++) usleep(pause_us);
    }
    if (!strcmp(ending, "thread")) {
        pthread_t ender;
        if (pthread_create(&ender, NULL, leave, NULL)) return 4;
        pause();
    }
    return 0;
}
