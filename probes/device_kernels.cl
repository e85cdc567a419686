/* Loops whose results the host knows exactly. Built with -D REAL=float|double|half and -D WIDTH=1|2|4|8|16.

   All numbers are small integers, which floating point holds without rounding: a sum does not depend on its
   order, and a missing or repeated operation shows. */

#ifdef cl_khr_fp16
#pragma OPENCL EXTENSION cl_khr_fp16 : enable
#endif

#define JOIN_(A, B) A##B
#define JOIN(A, B) JOIN_(A, B)

#if WIDTH == 1
#define VECTOR REAL
#define LOAD(K, P) (P)[K]
#define TO_FLOATS convert_float
#define FLOATS float
#else
#define VECTOR JOIN(REAL, WIDTH)
#define LOAD(K, P) JOIN(vload, WIDTH)(K, P)
#define TO_FLOATS JOIN(convert_float, WIDTH)
#define FLOATS JOIN(float, WIDTH)
#endif

#define FETCHES 16 /* vectors that a work-item reads */

float sum_of(FLOATS v)
{
    float lanes[WIDTH], sum = 0;
#if WIDTH == 1
    lanes[0] = v;
#else
    JOIN(vstore, WIDTH)(v, 0, lanes);
#endif
    for (int i = 0; i < WIDTH; i++)
        sum += lanes[i];
    return sum;
}

/* Neighbours read neighbours together, as GPUs like it. */
__kernel void read_across(__global const VECTOR *in, __global float *sums)
{
    size_t step = get_local_size(0), i = get_group_id(0) * step * FETCHES + get_local_id(0);
    VECTOR sum = in[i];
    for (int n = 1; n < FETCHES; n++)
        sum += in[i + n * step];
    sums[get_global_id(0)] = sum_of(TO_FLOATS(sum));
}

/* Each work-item reads a run, as processors like it. */
__kernel void read_along(__global const VECTOR *in, __global float *sums)
{
    size_t i = get_global_id(0) * FETCHES;
    VECTOR sum = in[i];
    for (int n = 1; n < FETCHES; n++)
        sum += in[i + n];
    sums[get_global_id(0)] = sum_of(TO_FLOATS(sum));
}

__kernel void write_each(__global VECTOR *out, REAL first)
{
    size_t i = get_global_id(0);
    out[i] = (VECTOR)(first + (REAL)(i & 255));
}

__kernel void copy_each(__global const VECTOR *in, __global VECTOR *out)
{
    size_t i = get_global_id(0);
    out[i] = in[i];
}

/* Eight multiply-adds do not wait for each other. */
#define EACH(DO) DO(0) DO(1) DO(2) DO(3) DO(4) DO(5) DO(6) DO(7)
#define START(K) VECTOR x##K = LOAD(K, start) + (VECTOR)(REAL)(get_global_id(0) & 15);
#define STEP(K) x##K = x##K * f + t; /* fused, where the device can */
#define ADD(K) + TO_FLOATS(x##K)

__kernel void multiply_add(__constant REAL *start, __global float *sums, REAL factor, REAL term, int rounds)
{
    VECTOR f = (VECTOR)factor, t = (VECTOR)term;
    EACH(START)
    for (int n = 0; n < rounds; n++) {
        EACH(STEP)
    }
    sums[get_global_id(0)] = sum_of((FLOATS)0 EACH(ADD));
}

__kernel void tick(__global int *cell) { cell[0] += 1; }
