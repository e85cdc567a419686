/* Counts the time that the ranks of an unmodified MPI program spend inside MPI (LD_PRELOAD).
 *
 * One build for every MPI with the C interface on 64-bit Linux: arguments are handed on as they come, one register
 * or stack place each, so mpi.h is not needed. The real function is the one that the caller itself is linked to.
 * Counted is the outermost call only; starting and ending MPI are not.
 *
 * A process that communicates keeps its counts in a file of its own in the folder TENBIN_MPI_TIME, mapped, so that
 * they are there however the process ends: see struct counts.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <link.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

_Static_assert(sizeof(long) == 8 && sizeof(void *) == 8, "64-bit only");

struct counts { /* native byte order */
    _Atomic uint64_t inside_ns;
    _Atomic uint64_t calls;
};

static struct counts nowhere, *counts = &nowhere;
static pid_t owner; /* a fork starts counts of its own */
static atomic_flag opening = ATOMIC_FLAG_INIT;
static __thread int depth;

static void open_counts(void) {
    const char *folder = getenv("TENBIN_MPI_TIME");
    if (!folder || atomic_flag_test_and_set(&opening))
        return;
    if (owner != getpid()) {
        char path[4096], host[256] = "";
        gethostname(host, sizeof host - 1);
        snprintf(path, sizeof path, "%s/%s-%ld", folder, host, (long)getpid());
        int file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
        void *place = MAP_FAILED;
        if (file >= 0 && ftruncate(file, sizeof(struct counts)) == 0)
            place = mmap(NULL, sizeof(struct counts), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
        counts = place == MAP_FAILED ? &nowhere : place;
        if (file >= 0)
            close(file);
        owner = getpid();
    }
    atomic_flag_clear(&opening);
}

static int find(struct dl_phdr_info *info, size_t size, void *wanted) {
    void **pair = wanted; /* name; address */
    (void)size;
    void *library = dlopen(info->dlpi_name, RTLD_LAZY | RTLD_NOLOAD);
    pair[1] = library ? dlsym(library, pair[0]) : NULL;
    if (library)
        dlclose(library);
    return pair[1] != NULL;
}

/* The function that the code at `caller` is linked to: a library may have been loaded for one module only. */
static void *real(const char *name, void *caller) {
    void *address = dlsym(RTLD_NEXT, name);
    Dl_info at;
    if (!address && dladdr(caller, &at) && at.dli_fname) {
        void *library = dlopen(at.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
        if (library) {
            address = dlsym(library, name);
            dlclose(library);
        }
    }
    void *pair[2] = {(void *)name, NULL};
    if (!address && dl_iterate_phdr(find, pair))
        address = pair[1];
    if (!address) {
        fprintf(stderr, "tenbin: %s is nowhere in this program\n", name);
        abort();
    }
    return address;
}

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static uint64_t enter(void) {
    if (depth++)
        return 0;
    if (owner != getpid())
        open_counts();
    return now_ns();
}

static void leave(uint64_t since) {
    if (--depth)
        return;
    counts->inside_ns += now_ns() - since;
    counts->calls++;
}

#define P1 long a
#define P2 P1, long b
#define P3 P2, long c
#define P4 P3, long d
#define P5 P4, long e
#define P6 P5, long f
#define P7 P6, long g
#define P8 P7, long h
#define P9 P8, long i
#define P10 P9, long j
#define P11 P10, long k
#define P12 P11, long l
#define A1 a
#define A2 A1, b
#define A3 A2, c
#define A4 A3, d
#define A5 A4, e
#define A6 A5, f
#define A7 A6, g
#define A8 A7, h
#define A9 A8, i
#define A10 A9, j
#define A11 A10, k
#define A12 A11, l

#define ONE(name, n)                                                                \
    long MPI_##name(P##n) {                                                         \
        static long (*call)(P##n);                                                  \
        if (!call)                                                                  \
            call = (long (*)(P##n))real("PMPI_" #name, __builtin_return_address(0)); \
        uint64_t since = enter();                                                   \
        long code = call(A##n);                                                     \
        leave(since);                                                               \
        return code;                                                                \
    }
#define BOTH(name, n) ONE(name, n) ONE(name##_c, n) /* with int and with MPI_Count */

/* from one rank to another */
BOTH(Send, 6) BOTH(Bsend, 6) BOTH(Ssend, 6) BOTH(Rsend, 6) BOTH(Recv, 7)
BOTH(Isend, 7) BOTH(Ibsend, 7) BOTH(Issend, 7) BOTH(Irsend, 7) BOTH(Irecv, 7)
BOTH(Sendrecv, 12) BOTH(Sendrecv_replace, 9)
BOTH(Mrecv, 5) BOTH(Imrecv, 5)
ONE(Probe, 4) ONE(Iprobe, 5) ONE(Mprobe, 5) ONE(Improbe, 6)
ONE(Start, 1) ONE(Startall, 2)
ONE(Wait, 2) ONE(Waitall, 3) ONE(Waitany, 4) ONE(Waitsome, 5)
ONE(Test, 3) ONE(Testall, 4) ONE(Testany, 5) ONE(Testsome, 5)
/* all together */
ONE(Barrier, 1) ONE(Ibarrier, 2)
BOTH(Bcast, 5) BOTH(Ibcast, 6)
BOTH(Gather, 8) BOTH(Igather, 9) BOTH(Gatherv, 9) BOTH(Igatherv, 10)
BOTH(Scatter, 8) BOTH(Iscatter, 9) BOTH(Scatterv, 9) BOTH(Iscatterv, 10)
BOTH(Allgather, 7) BOTH(Iallgather, 8) BOTH(Allgatherv, 8) BOTH(Iallgatherv, 9)
BOTH(Alltoall, 7) BOTH(Ialltoall, 8) BOTH(Alltoallv, 9) BOTH(Ialltoallv, 10)
BOTH(Alltoallw, 9) BOTH(Ialltoallw, 10)
BOTH(Reduce, 7) BOTH(Ireduce, 8) BOTH(Allreduce, 6) BOTH(Iallreduce, 7)
BOTH(Reduce_scatter, 6) BOTH(Ireduce_scatter, 7)
BOTH(Reduce_scatter_block, 6) BOTH(Ireduce_scatter_block, 7)
BOTH(Scan, 6) BOTH(Iscan, 7) BOTH(Exscan, 6) BOTH(Iexscan, 7)
BOTH(Neighbor_allgather, 7) BOTH(Ineighbor_allgather, 8)
BOTH(Neighbor_allgatherv, 8) BOTH(Ineighbor_allgatherv, 9)
BOTH(Neighbor_alltoall, 7) BOTH(Ineighbor_alltoall, 8)
BOTH(Neighbor_alltoallv, 9) BOTH(Ineighbor_alltoallv, 10)
/* into another rank's memory */
BOTH(Put, 8) BOTH(Get, 8) BOTH(Accumulate, 9) BOTH(Get_accumulate, 12)
BOTH(Rput, 9) BOTH(Rget, 9) BOTH(Raccumulate, 10)
ONE(Fetch_and_op, 7) ONE(Compare_and_swap, 7)
ONE(Win_fence, 2) ONE(Win_post, 3) ONE(Win_start, 3) ONE(Win_complete, 1) ONE(Win_wait, 1) ONE(Win_test, 2)
ONE(Win_lock, 4) ONE(Win_unlock, 2) ONE(Win_lock_all, 2) ONE(Win_unlock_all, 1)
ONE(Win_flush, 2) ONE(Win_flush_all, 1) ONE(Win_flush_local, 2) ONE(Win_flush_local_all, 1)
/* new communicators, agreed on by all */
ONE(Comm_dup, 2) ONE(Comm_split, 4) ONE(Comm_create, 3) ONE(Comm_free, 1)
