/* Arithmetic without memory: fused multiply-adds in vector registers, and a chain of dependent additions.

   Each accumulator of a vector loop depends on itself only. There are as many as the registers hold, because a
   core starts several multiply-adds a cycle and each takes four cycles or more. GCC and clang know the vector
   types below; a type wider than the machine's registers would be split, so the width follows the machine. */

#include <stdint.h>
#include <time.h>

#if defined(__AVX512F__)
#define WIDTH 64
#define REGISTERS 32
#elif defined(__AVX__)
#define WIDTH 32
#define REGISTERS 16
#elif defined(__aarch64__)
#define WIDTH 16
#define REGISTERS 32
#else
#define WIDTH 16
#define REGISTERS 16
#endif

#define ACCUMULATORS (REGISTERS == 32 ? 24 : 12) /* the others hold factor and term */
#define ADDS_A_ROUND 128

const int vector_bytes = WIDTH;
const int accumulators = ACCUMULATORS;
const int adds_a_round = ADDS_A_ROUND;
#if defined(__FMA__) || defined(__aarch64__)
const int fused = 1;
#else
const int fused = 0;
#endif

/* lanes: ACCUMULATORS * WIDTH / sizeof(TYPE) numbers; x = x * factor + term for each, `rounds` times. */
#define VECTOR_LOOP(NAME, TYPE)                                                                \
    typedef TYPE NAME##_vector __attribute__((vector_size(WIDTH), aligned(sizeof(TYPE))));     \
    void NAME(uint64_t rounds, TYPE factor, TYPE term, TYPE *lanes)                            \
    {                                                                                          \
        NAME##_vector *in = (NAME##_vector *)lanes, x[ACCUMULATORS];                           \
        NAME##_vector f, t;                                                                    \
        for (int i = 0; i < (int)(WIDTH / sizeof(TYPE)); i++)                                  \
            f[i] = factor, t[i] = term;                                                        \
        for (int i = 0; i < ACCUMULATORS; i++)                                                 \
            x[i] = in[i];                                                                      \
        for (uint64_t n = 0; n < rounds; n++) {                                                \
            _Pragma("GCC unroll 24") for (int i = 0; i < ACCUMULATORS; i++)                    \
                x[i] = x[i] * f + t;                                                           \
        }                                                                                      \
        for (int i = 0; i < ACCUMULATORS; i++)                                                 \
            in[i] = x[i];                                                                      \
    }

VECTOR_LOOP(multiply_add_double, double)
VECTOR_LOOP(multiply_add_single, float)

static double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

#if defined(__x86_64__)
#define ADD(X, STEP) __asm__ volatile("add %1, %0" : "+r"(X) : "r"(STEP) : "cc")
#elif defined(__aarch64__)
#define ADD(X, STEP) __asm__ volatile("add %0, %0, %1" : "+r"(X) : "r"(STEP))
#else
#define ADD(X, STEP) X += STEP; __asm__ volatile("" : "+r"(X))
#endif

/* Add `step` to `x` adds_a_round * rounds times, each addition after the one before. `step` is in a register,
   because recent Intel cores add constants while they rename registers, several in a cycle. */
uint64_t add_chain(uint64_t rounds, uint64_t x, uint64_t step, double *seconds)
{
    double start = now_s();
    for (uint64_t n = 0; n < rounds; n++) {
        _Pragma("GCC unroll 128") for (int i = 0; i < ADDS_A_ROUND; i++)
        {
            ADD(x, step);
        }
    }
    *seconds = now_s() - start;
    return x;
}
