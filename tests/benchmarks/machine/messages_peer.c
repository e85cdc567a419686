/* The same two patterns in C: half a round trip, and a window of 64 messages with an answer.
   mpiexec -n 2 messages_peer BYTES REPETITIONS prints the medians in s: latency bandwidth */
#define _DEFAULT_SOURCE
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { WINDOW = 64, WARM = 10, HUGE = 2 << 20 };

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double latency(char *buffer, int bytes, int rank)
{
    enum { TRIPS = 20 };
    double start = MPI_Wtime();
    for (int i = 0; i < TRIPS; i++) {
        if (rank == 0) {
            MPI_Send(buffer, bytes, MPI_BYTE, 1, 0, MPI_COMM_WORLD);
            MPI_Recv(buffer, bytes, MPI_BYTE, 1, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        } else {
            MPI_Recv(buffer, bytes, MPI_BYTE, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            MPI_Send(buffer, bytes, MPI_BYTE, 0, 0, MPI_COMM_WORLD);
        }
    }
    return (MPI_Wtime() - start) / (2 * TRIPS);
}

static double bandwidth(char *buffer, int bytes, int rank)
{
    MPI_Request requests[WINDOW];
    char answer[4] = {0};
    double start = MPI_Wtime();
    for (int i = 0; i < WINDOW; i++) {
        if (rank == 0)
            MPI_Isend(buffer, bytes, MPI_BYTE, 1, 0, MPI_COMM_WORLD, &requests[i]);
        else
            MPI_Irecv(buffer, bytes, MPI_BYTE, 0, 0, MPI_COMM_WORLD, &requests[i]);
    }
    MPI_Waitall(WINDOW, requests, MPI_STATUSES_IGNORE);
    if (rank == 0)
        MPI_Recv(answer, 4, MPI_BYTE, 1, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    else
        MPI_Send(answer, 4, MPI_BYTE, 0, 0, MPI_COMM_WORLD);
    return (MPI_Wtime() - start) / WINDOW;
}

int main(int argc, char **argv)
{
    double (*patterns[])(char *, int, int) = {latency, bandwidth};
    int rank, bytes = atoi(argv[1]), repetitions = atoi(argv[2]);
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    size_t room = ((size_t)bytes + HUGE - 1) / HUGE * HUGE;
    char *buffer = aligned_alloc(HUGE, room);
    madvise(buffer, room, MADV_HUGEPAGE); /* as numpy does */
    memset(buffer, 0, room);
    double *times = malloc(repetitions * sizeof *times);
    for (int which = 0; which < 2; which++) {
        for (int i = -WARM; i < repetitions; i++) {
            MPI_Barrier(MPI_COMM_WORLD);
            double took = patterns[which](buffer, bytes, rank);
            if (i >= 0)
                times[i] = took;
        }
        qsort(times, repetitions, sizeof *times, compare);
        if (rank == 0)
            printf("%.9g%c", times[repetitions / 2], which ? '\n' : ' ');
    }
    return MPI_Finalize();
}
