/* Has buffers of so many MiB in all, and writes to some of them again and again until its input ends.
 * Arguments: MiB, buffers, buffers written. */
#define CL_TARGET_OPENCL_VERSION 120
#include <CL/cl.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

enum { MOST = 64, ITEMS = 16384 };

int main(int count, char **given) {
    if (count != 4) return 2;
    int buffers = atoi(given[2]), written = atoi(given[3]), zero = 0;
    size_t size = ((size_t)atoi(given[1]) << 20) / (size_t)buffers & ~(size_t)4095, items = ITEMS;
    cl_platform_id platform;
    cl_device_id device;
    if (clGetPlatformIDs(1, &platform, NULL) || clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, 1, &device, NULL)) return 1;
    cl_context context = clCreateContext(NULL, 1, &device, NULL, NULL, NULL);
    cl_command_queue queue = clCreateCommandQueue(context, device, 0, NULL);
    const char *text = "__kernel void add(__global const int *a, __global int *b) {"
                       " size_t i = get_global_id(0); b[i] += a[i] + 1; }";
    cl_program program = clCreateProgramWithSource(context, 1, &text, NULL, NULL);
    if (clBuildProgram(program, 1, &device, "", NULL, NULL)) return 1;
    cl_kernel kernel = clCreateKernel(program, "add", NULL);
    cl_mem all[MOST];
    for (int i = 0; i < buffers; i++) {
        all[i] = clCreateBuffer(context, CL_MEM_READ_WRITE, size, NULL, NULL);
        clEnqueueFillBuffer(queue, all[i], &zero, sizeof(zero), 0, size, 0, NULL, NULL);
    }
    clFinish(queue);
    fcntl(STDIN_FILENO, F_SETFL, O_NONBLOCK);
    printf("ready\n");
    fflush(stdout);
    for (char c; read(STDIN_FILENO, &c, 1) != 0;) {
        for (int i = 0; i < written; i++) {
            clSetKernelArg(kernel, 0, sizeof(cl_mem), &all[buffers - 1]);
            clSetKernelArg(kernel, 1, sizeof(cl_mem), &all[i]);
            clEnqueueNDRangeKernel(queue, kernel, 1, NULL, &items, NULL, 0, NULL, NULL);
        }
        clFinish(queue);
        nanosleep(&(struct timespec){0, 1000000}, NULL);
    }
    return 0;
}
