/* The peer of probes/memory_writer.py: the same loop in C.

   usage: memory_peer CORE AREA_BYTES
   For every number of passes read from stdin it writes one 8-byte word into each 64-byte line of the area that
   many times, and prints wall time, thread CPU time (s) and the bytes of lines written.  */
#define _GNU_SOURCE
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>

enum { LINE = 64, STRIDE = LINE / sizeof(int64_t), HUGE_PAGE = 2 << 20 };

static double now(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return t.tv_sec + 1e-9 * t.tv_nsec;
}

static void write_lines(int64_t *a, size_t n, int64_t value)
{
    for (size_t i = 0; i < n; i += STRIDE)
        a[i] = value;
    __asm__ volatile("" ::: "memory"); /* every pass counts, also one that the next overwrites */
}

int main(int argc, char **argv)
{
    if (argc != 3)
        return 2;
    size_t size = strtoull(argv[2], NULL, 10), n = size / sizeof(int64_t);
    cpu_set_t cpus;
    CPU_ZERO(&cpus);
    CPU_SET(atoi(argv[1]), &cpus);
    if (sched_setaffinity(0, sizeof cpus, &cpus)) {
        perror("sched_setaffinity");
        return 1;
    }
    int64_t *a = aligned_alloc(HUGE_PAGE, size);
    if (!a) {
        perror("aligned_alloc");
        return 1;
    }
    madvise(a, size, MADV_HUGEPAGE); /* as the writer does; refused by kernels without huge pages */
    write_lines(a, n, 1);

    int passes;
    while (scanf("%d", &passes) == 1) {
        write_lines(a, n, 1); /* uncounted: wakes the core up */
        double wall = now(CLOCK_MONOTONIC), cpu = now(CLOCK_THREAD_CPUTIME_ID);
        for (int p = 0; p < passes; p++)
            write_lines(a, n, p + 1);
        cpu = now(CLOCK_THREAD_CPUTIME_ID) - cpu;
        wall = now(CLOCK_MONOTONIC) - wall;
        int64_t sum = 0; /* the answer is looked at: every line holds the last pass's number */
        for (size_t i = 0; i < n; i += STRIDE)
            sum += a[i];
        printf("%.9f %.9f %zu %d\n", wall, cpu, passes * size, sum == passes * (int64_t)(n / STRIDE));
        fflush(stdout);
    }
    return 0;
}
