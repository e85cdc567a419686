/* The loops of the probe `streams`: bandwidth in STREAM's terms, and latency by chasing pointers.

   Each function runs on the calling thread, which the caller has pinned. Times are seconds of CLOCK_MONOTONIC, the
   clock of Python's time.monotonic. Chunks and steps between two looks at the clock take some ten microseconds. */
#define _GNU_SOURCE
#include <stddef.h>
#include <stdint.h>
#include <time.h>
#if defined(__SSE2__)
#include <immintrin.h>
#endif
#if defined(__has_builtin)
#if __has_builtin(__builtin_nontemporal_store)
#define STORE_PAST_CACHES(p, x) __builtin_nontemporal_store(x, p)
#endif
#endif

enum { READ, WRITE, WRITE_NT, COPY, SCALE, ADD, TRIAD };
enum { LANES = 64, LINE = 64, STEPS = 512, WALKERS = 16 };

typedef struct {
    double start_s, wall_s, cpu_s;
    uint64_t done; /* elements, or accesses */
    double sum;    /* of what was read */
} window;

typedef struct line { /* one pointer in each line of the caches */
    _Alignas(LINE) struct line *next;
} line;

static double now(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* --- bandwidth. n is a multiple of LANES; arrays start at a line of the caches. */

static double read_all(const double *restrict a, size_t n)
{
    double part[LANES] = {0}, sum = 0; /* so many sums that no addition waits for the one before */
    for (size_t i = 0; i < n; i += LANES)
        for (size_t k = 0; k < LANES; k++)
            part[k] += a[i + k];
    for (size_t k = 0; k < LANES; k++)
        sum += part[k];
    return sum;
}

static void write_all(double *restrict c, double s, size_t n)
{
    for (size_t i = 0; i < n; i++)
        c[i] = s;
}

static void write_past_caches(double *restrict c, double s, size_t n)
{
#if defined(__AVX512F__)
    for (size_t i = 0; i < n; i += 8)
        _mm512_stream_pd(c + i, _mm512_set1_pd(s));
    _mm_sfence();
#elif defined(__AVX__)
    for (size_t i = 0; i < n; i += 4)
        _mm256_stream_pd(c + i, _mm256_set1_pd(s));
    _mm_sfence();
#elif defined(__SSE2__)
    for (size_t i = 0; i < n; i += 2)
        _mm_stream_pd(c + i, _mm_set1_pd(s));
    _mm_sfence();
#elif defined(STORE_PAST_CACHES)
    for (size_t i = 0; i < n; i++)
        STORE_PAST_CACHES(c + i, s);
#else
    write_all(c, s, n);
#endif
}

static void copy(double *restrict c, const double *restrict a, size_t n)
{
    for (size_t i = 0; i < n; i++)
        c[i] = a[i];
}

static void scale(double *restrict c, const double *restrict a, double s, size_t n)
{
    for (size_t i = 0; i < n; i++)
        c[i] = s * a[i];
}

static void add(double *restrict c, const double *restrict a, const double *restrict b, size_t n)
{
    for (size_t i = 0; i < n; i++)
        c[i] = a[i] + b[i];
}

static void triad(double *restrict c, const double *restrict a, const double *restrict b, double s, size_t n)
{
    for (size_t i = 0; i < n; i++)
        c[i] = a[i] + s * b[i];
}

/* Has this machine and compiler stores that go past the caches? */
int has_past_caches(void)
{
#if defined(__SSE2__) || defined(STORE_PAST_CACHES)
    return 1;
#else
    return 0;
#endif
}

/* Run one kernel over the next n elements at `at`; return the sum of what it read (READ only). */
double run_kernel(int kernel, double *const arrays[3], size_t at, size_t n, double s)
{
    const double *a = arrays[0] + at, *b = arrays[1] + at;
    double *c = arrays[2] + at;
    switch (kernel) {
    case READ: return read_all(a, n);
    case WRITE: write_all(c, s, n); break;
    case WRITE_NT: write_past_caches(c, s, n); break;
    case COPY: copy(c, a, n); break;
    case SCALE: scale(c, a, s, n); break;
    case ADD: add(c, a, b, n); break;
    default: triad(c, a, b, s, n);
    }
    return 0;
}

/* Fill the elements with whole numbers, so that sums are exact: a = i % 97 + 1, b = i % 89 + 1, c = -1. */
void fill(double *const arrays[3], size_t n)
{
    for (size_t i = 0; i < n; i++) {
        arrays[0][i] = (double)(i % 97 + 1);
        arrays[1][i] = (double)(i % 89 + 1);
        arrays[2][i] = -1;
    }
}

/* Chunk after chunk, round and round over n elements (a multiple of chunk) from *at, from begin_s to end_s; only what
   begins after start_s counts. */
void stream(int kernel, double *const arrays[3], size_t n, size_t chunk, size_t *at, double s, const double times[3],
            window *out)
{
    double start = 0, cpu = 0, t;
    uint64_t done = 0;
    out->sum = 0;
    while (now(CLOCK_MONOTONIC) < times[0])
        ;
    for (;;) {
        t = now(CLOCK_MONOTONIC);
        if (!start && t >= times[1]) {
            cpu = now(CLOCK_THREAD_CPUTIME_ID);
            start = t = now(CLOCK_MONOTONIC);
            done = 0;
            out->sum = 0;
        }
        if (start && t >= times[2] && done)
            break;
        out->sum += run_kernel(kernel, arrays, *at, chunk, s);
        done += chunk;
        *at = *at + chunk < n ? *at + chunk : 0;
    }
    out->start_s = start;
    out->wall_s = t - start;
    out->cpu_s = now(CLOCK_THREAD_CPUTIME_ID) - cpu;
    out->done = done;
}

/* --- latency */

/* Let the random cycle over the first `from` lines grow to `to` lines: each new line is put behind one of those
   before, all alike. So each of the (n - 1)! cycles is as likely as the others, as with Sattolo's shuffle. */
void grow(line *lines, uint64_t from, uint64_t to, uint64_t *random)
{
    uint64_t x = *random;
    if (!from) {
        lines[0].next = lines;
        from = 1;
    }
    for (uint64_t m = from; m < to; m++) {
        x ^= x << 13, x ^= x >> 7, x ^= x << 17;
        uint64_t j = (x >> 32) * m >> 32;
        lines[m].next = lines[j].next;
        lines[j].next = lines + m;
    }
    *random = x;
}

/* Place the walkers at equal distances on the cycle of n lines. While it grows further, they stay nearly so. */
void place(line *lines, uint64_t n, line *walkers[WALKERS])
{
    line *at = lines;
    for (uint64_t k = 0, i = 0; k < WALKERS; k++) {
        for (; i < n * k / WALKERS; i++)
            at = at->next;
        walkers[k] = at;
    }
}

/* Go over the whole cycle with all walkers at once, each a part of it (`steps`), so that the caches hold what a long
   chase would have left there. One chase over all of a large set would take many times longer. */
void warm(uint64_t steps, line *const walkers[WALKERS])
{
    line *at[WALKERS];
    for (int k = 0; k < WALKERS; k++)
        at[k] = walkers[k];
    for (uint64_t i = 0; i < steps; i++)
        for (int k = 0; k < WALKERS; k++)
            at[k] = at[k]->next;
    for (int k = 0; k < WALKERS; k++)
        __asm__ volatile("" : : "r"(at[k]));
}

/* Chase the pointers from *at for the time given, one access after the other. */
void chase(line **at, double seconds, window *out)
{
    line *p = *at;
    uint64_t done = 0;
    double cpu = now(CLOCK_THREAD_CPUTIME_ID), t, start = now(CLOCK_MONOTONIC);
    do {
        for (int i = 0; i < STEPS / 16; i++) {
            p = p->next; p = p->next; p = p->next; p = p->next;
            p = p->next; p = p->next; p = p->next; p = p->next;
            p = p->next; p = p->next; p = p->next; p = p->next;
            p = p->next; p = p->next; p = p->next; p = p->next;
        }
        __asm__ volatile("" : "+r"(p));
        done += STEPS;
        t = now(CLOCK_MONOTONIC);
    } while (t - start < seconds);
    *at = p;
    out->start_s = start;
    out->wall_s = t - start;
    out->cpu_s = now(CLOCK_THREAD_CPUTIME_ID) - cpu;
    out->done = done;
}
