/* The product of two square matrices of n columns, a multiple of TILE. A work-group makes TILE x TILE numbers of
   it, each of its items SIDE x SIDE, from slices of both matrices in the group's own memory. */

#define TILE 64
#define DEPTH 16
#define GROUP 16
#define SIDE (TILE / GROUP)

__attribute__((reqd_work_group_size(GROUP * GROUP, 1, 1)))
__kernel void product(__global const float *a, __global const float *b, __global float *c, int n)
{
    __local float rows[DEPTH][TILE], columns[DEPTH][TILE];
    const int item = get_local_id(0), x = item % GROUP, y = item / GROUP;
    const int left = get_group_id(0) % (n / TILE) * TILE, top = get_group_id(0) / (n / TILE) * TILE;
    float sums[SIDE][SIDE];
    for (int i = 0; i < SIDE; i++)
        for (int j = 0; j < SIDE; j++)
            sums[i][j] = 0;
    for (int k = 0; k < n; k += DEPTH) {
        for (int i = item; i < DEPTH * TILE; i += GROUP * GROUP) {
            rows[i % DEPTH][i / DEPTH] = a[(top + i / DEPTH) * n + k + i % DEPTH];
            columns[i / TILE][i % TILE] = b[(k + i / TILE) * n + left + i % TILE];
        }
        barrier(CLK_LOCAL_MEM_FENCE);
        for (int d = 0; d < DEPTH; d++)
            for (int i = 0; i < SIDE; i++)
                for (int j = 0; j < SIDE; j++)
                    sums[i][j] += rows[d][y + i * GROUP] * columns[d][x + j * GROUP];
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    for (int i = 0; i < SIDE; i++)
        for (int j = 0; j < SIDE; j++)
            c[(top + y + i * GROUP) * n + left + x + j * GROUP] = sums[i][j];
}
