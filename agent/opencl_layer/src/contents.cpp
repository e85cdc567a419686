/* Copies of the contents of buffers and images. */
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <future>
#include <system_error>
#include <thread>

#include "move.h"

namespace tenbin {

constexpr size_t HUGE_PAGE = size_t(2) << 20;
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

std::vector<Piece> pieces_of(const Memory &memory) {
    std::vector<Piece> pieces;
    if (!memory.image) {
        for (size_t at = 0; at < memory.size; at += CHUNK) {
            size_t bytes = std::min(CHUNK, memory.size - at);
            pieces.push_back({{at, 0, 0}, {bytes, 1, 1}, bytes});
        }
        return pieces;
    }
    size_t all[3];
    memory.extent(all);
    size_t row = all[0] * memory.element_size, rows = std::max<size_t>(1, CHUNK / std::max<size_t>(1, row));
    for (size_t z = 0; z < all[2]; z++)
        for (size_t y = 0; y < all[1]; y += rows) {
            size_t n = std::min(rows, all[1] - y);
            pieces.push_back({{0, y, z}, {all[0], n, 1}, row * n});
        }
    return pieces;
}

size_t bytes_of(const Memory &memory) {
    size_t sum = 0;
    for (auto &piece : pieces_of(memory)) sum += piece.bytes;
    return sum;
}

/* The system takes far longer to find pages than a copy takes to fill them. What it refuses is left to the copy. */
void touch_pages(void *start, size_t bytes) {
    constexpr size_t THREADS = 4;
    auto page = size_t(sysconf(_SC_PAGESIZE));
    auto begin = (reinterpret_cast<uintptr_t>(start) + page - 1) / page * page;
    auto end = (reinterpret_cast<uintptr_t>(start) + bytes) / page * page;
    if (end < begin + 2 * HUGE_PAGE) return;
    madvise(reinterpret_cast<void *>(begin), end - begin, MADV_HUGEPAGE);
    size_t n = std::clamp<size_t>(std::thread::hardware_concurrency(), 1, THREADS);
    size_t part = ((end - begin) / n + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE;
    std::vector<std::future<void>> parts;
    try {
        for (; begin < end; begin += part)
            parts.push_back(std::async(std::launch::async, [begin, stop = std::min(begin + part, end)] {
                for (uintptr_t at = begin; at < stop; at += HUGE_PAGE) /* the program's own faults go between */
                    madvise(reinterpret_cast<void *>(at), std::min(HUGE_PAGE, stop - at), MADV_POPULATE_WRITE);
            }));
    } catch (const std::system_error &) { /* no more threads */
    }
}

/* Where the device uses the host's memory. */
void touch_new(const Memory &memory, cl_mem next, cl_command_queue to) {
    cl_device_id device = nullptr;
    cl_bool is_unified = CL_FALSE;
    target->clGetCommandQueueInfo(to, CL_QUEUE_DEVICE, sizeof(device), &device, nullptr);
    target->clGetDeviceInfo(device, CL_DEVICE_HOST_UNIFIED_MEMORY, sizeof(is_unified), &is_unified, nullptr);
    if (!is_unified || memory.image || memory.host) return;
    cl_int error;
    void *there = target->clEnqueueMapBuffer(to, next, CL_TRUE, CL_MAP_WRITE_INVALIDATE_REGION, 0, memory.size, 0,
                                             nullptr, nullptr, &error);
    if (error == CL_SUCCESS) {
        touch_pages(there, memory.size);
        error = target->clEnqueueUnmapMemObject(to, next, there, 0, nullptr, nullptr);
        target->clFinish(to);
    }
    step(error, "touch new device memory");
}

static void read_piece(cl_command_queue queue, const Memory &memory, const Piece &p, void *to) {
    cl_mem real = real_of(&memory);
    step(memory.image ? target->clEnqueueReadImage(queue, real, CL_TRUE, p.origin, p.region, 0, 0, to, 0, nullptr,
                                                   nullptr)
                      : target->clEnqueueReadBuffer(queue, real, CL_TRUE, p.origin[0], p.bytes, to, 0, nullptr,
                                                    nullptr),
         "read device memory");
}

static void write_piece(cl_command_queue queue, const Memory &memory, cl_mem next, const Piece &p, const void *from) {
    step(memory.image ? target->clEnqueueWriteImage(queue, next, CL_TRUE, p.origin, p.region, 0, 0, from, 0, nullptr,
                                                    nullptr)
                      : target->clEnqueueWriteBuffer(queue, next, CL_TRUE, p.origin[0], p.bytes, from, 0, nullptr,
                                                     nullptr),
         "write device memory");
}

CopyQueues::~CopyQueues() {
    for (auto &[context, queue] : queues) target->clReleaseCommandQueue(queue);
}

cl_command_queue CopyQueues::of(const Context *context, cl_context real, cl_device_id device) {
    cl_command_queue &queue = queues[context];
    if (!queue) {
        cl_int error;
        queue = target->clCreateCommandQueue(real, device, 0, &error);
        if (error != CL_SUCCESS) queues.erase(context);
        step(error, "make a queue for copies");
    }
    return queue;
}

void save_contents(Store &store, CopyQueues &queues) {
    cl_device_id device = real_of(the_device());
    for_each<Memory>([&](Memory &memory) {
        if (memory.parent) return;
        cl_command_queue queue = queues.of(memory.context.get(), real_of(memory.context.get()), device);
        for (auto &piece : pieces_of(memory)) {
            read_piece(queue, memory, piece, store.space(piece.bytes));
            store.put(piece.bytes);
        }
    });
    store.written();
}

/* A buffer is read into its mapped successor, which saves one copy; mapping what the program has mapped already
 * would be the other way, and crashes PoCL 3.1. */
void load_from_device(const Memory &memory, cl_mem next, cl_command_queue from, cl_command_queue to) {
    std::vector<char> staging;
    for (auto &piece : pieces_of(memory)) {
        if (memory.image) {
            staging.resize(piece.bytes);
            read_piece(from, memory, piece, staging.data());
            write_piece(to, memory, next, piece, staging.data());
            continue;
        }
        cl_int error;
        void *there = target->clEnqueueMapBuffer(to, next, CL_TRUE, CL_MAP_WRITE_INVALIDATE_REGION, piece.origin[0],
                                                 piece.bytes, 0, nullptr, nullptr, &error);
        step(error, "map new device memory");
        Trouble trouble;
        try {
            read_piece(from, memory, piece, there);
        } catch (const Trouble &one) {
            trouble = one;
        }
        cl_int unmapped = target->clEnqueueUnmapMemObject(to, next, there, 0, nullptr, nullptr);
        cl_int finished = target->clFinish(to);
        if (!trouble.what.empty()) throw trouble;
        step(unmapped != CL_SUCCESS ? unmapped : finished, "unmap new device memory");
    }
}

void load_from_store(Memory &memory, Store &store, cl_command_queue to) {
    for (auto &piece : pieces_of(memory))
        write_piece(to, memory, next_of(&memory), piece, store.take(piece.bytes));
}

} // namespace tenbin
