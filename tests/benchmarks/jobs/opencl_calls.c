/* Times OpenCL calls: prints name and nanoseconds (or seconds) of each, of the first device of the first platform. */
#define CL_TARGET_OPENCL_VERSION 120
#include <CL/cl.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { REPEATS = 21, CALLS = 500 };

static double now_s(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec + 1e-9 * now.tv_nsec;
}

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void print_median(const char *name, double *values, int n) {
    qsort(values, n, sizeof(double), compare);
    printf("%s %.9g\n", name, values[n / 2]);
}

#define MEASURE(name, calls, call)                                                                                  \
    do {                                                                                                            \
        double times[REPEATS];                                                                                      \
        for (int r = 0; r < REPEATS; r++) {                                                                         \
            double began = now_s();                                                                                 \
            for (int i = 0; i < (calls); i++) call;                                                                 \
            times[r] = (now_s() - began) / (calls);                                                                 \
            clFinish(queue);                                                                                        \
        }                                                                                                           \
        print_median(name, times, REPEATS);                                                                         \
    } while (0)

int main(void) {
    cl_platform_id platform;
    cl_device_id device;
    if (clGetPlatformIDs(1, &platform, NULL) || clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, 1, &device, NULL)) return 1;
    cl_context context = clCreateContext(NULL, 1, &device, NULL, NULL, NULL);
    cl_command_queue queue = clCreateCommandQueue(context, device, 0, NULL);
    const char *text = "__kernel void one(__global int *a, int b) { a[0] = b; }";
    cl_program program = clCreateProgramWithSource(context, 1, &text, NULL, NULL);
    if (clBuildProgram(program, 1, &device, "", NULL, NULL)) return 1;
    cl_kernel kernel = clCreateKernel(program, "one", NULL);
    size_t size = (size_t)64 << 20, global = 1;
    char *host = calloc(1, size);
    cl_mem buffer = clCreateBuffer(context, CL_MEM_READ_WRITE, size, NULL, NULL);
    clEnqueueWriteBuffer(queue, buffer, CL_TRUE, 0, size, host, 0, NULL, NULL);
    int value = 3;
    MEASURE("set_value_s", CALLS, clSetKernelArg(kernel, 1, sizeof(value), &value));
    MEASURE("set_buffer_s", CALLS, clSetKernelArg(kernel, 0, sizeof(buffer), &buffer));
    MEASURE("enqueue_s", CALLS, clEnqueueNDRangeKernel(queue, kernel, 1, NULL, &global, NULL, 0, NULL, NULL));
    MEASURE("finish_s", CALLS, clFinish(queue));
    MEASURE("read_4k_s", CALLS, clEnqueueReadBuffer(queue, buffer, CL_TRUE, 0, 4096, host, 0, NULL, NULL));
    MEASURE("read_64m_s", 1, clEnqueueReadBuffer(queue, buffer, CL_TRUE, 0, size, host, 0, NULL, NULL));
    MEASURE("write_64m_s", 1, clEnqueueWriteBuffer(queue, buffer, CL_TRUE, 0, size, host, 0, NULL, NULL));
    fflush(stdout);
    getchar(); /* now others may move it */
    clFinish(queue);
    return 0;
}
