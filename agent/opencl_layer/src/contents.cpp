/* Copies of the contents of buffers and images. */
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
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

/* Work on memory that is to be filled, huge page after huge page, by several threads. The system takes far longer to
 * find pages than a copy takes to fill them. What it refuses is left to the copy. */
template <class Function> static void by_huge_pages(void *start, size_t bytes, Function fill) {
    constexpr size_t THREADS = 4;
    auto page = size_t(sysconf(_SC_PAGESIZE));
    auto first = reinterpret_cast<uintptr_t>(start), last = first + bytes;
    auto inner = [page](uintptr_t begin, uintptr_t end, int advice) { /* whole pages only */
        begin = (begin + page - 1) / page * page;
        end = end / page * page;
        if (begin < end) madvise(reinterpret_cast<void *>(begin), end - begin, advice);
    };
    if (bytes < 2 * HUGE_PAGE) {
        fill(0, bytes);
        return;
    }
    inner(first, last, MADV_HUGEPAGE);
    std::atomic<uintptr_t> next{first / HUGE_PAGE * HUGE_PAGE};
    auto work = [&] {
        for (uintptr_t at; (at = next.fetch_add(HUGE_PAGE, std::memory_order_relaxed)) < last;) {
            uintptr_t begin = std::max(at, first), end = std::min(at + HUGE_PAGE, last);
            inner(begin, end, MADV_POPULATE_WRITE); /* the program's own faults go between */
            fill(begin - first, end - begin);
        }
    };
    size_t n = std::min(std::clamp<size_t>(std::thread::hardware_concurrency(), 1, THREADS), bytes / HUGE_PAGE);
    std::vector<std::future<void>> others;
    try {
        while (others.size() + 1 < n) others.push_back(std::async(std::launch::async, work));
    } catch (const std::system_error &) { /* no more threads */
    }
    work();
}

void touch_pages(void *start, size_t bytes) {
    if (bytes >= 2 * HUGE_PAGE) by_huge_pages(start, bytes, [](size_t, size_t) {});
}

static void copy_to_new(void *to, const char *from, size_t bytes) {
    by_huge_pages(to, bytes,
                  [=](size_t at, size_t n) { memcpy(static_cast<char *>(to) + at, from + at, n); });
}

/* Fill a part of a new buffer where the device, or its driver, gives the host a pointer to it. */
template <class Function>
static void with_mapped(cl_mem next, size_t origin, size_t bytes, cl_command_queue to, Function fill) {
    cl_int error;
    void *there = target->clEnqueueMapBuffer(to, next, CL_TRUE, CL_MAP_WRITE_INVALIDATE_REGION, origin, bytes, 0,
                                             nullptr, nullptr, &error);
    step(error, "map new device memory");
    Trouble trouble;
    try {
        fill(static_cast<char *>(there));
    } catch (const Trouble &one) {
        trouble = one;
    }
    cl_int unmapped = target->clEnqueueUnmapMemObject(to, next, there, 0, nullptr, nullptr);
    cl_int finished = finish(to);
    if (!trouble.what.empty()) throw trouble;
    step(unmapped != CL_SUCCESS ? unmapped : finished, "unmap new device memory");
}

/* Whether a new buffer lies in the host's memory. */
static bool is_of_host(const Memory &memory, cl_command_queue to) {
    cl_device_id device = nullptr;
    cl_bool is_unified = CL_FALSE;
    target->clGetCommandQueueInfo(to, CL_QUEUE_DEVICE, sizeof(device), &device, nullptr);
    target->clGetDeviceInfo(device, CL_DEVICE_HOST_UNIFIED_MEMORY, sizeof(is_unified), &is_unified, nullptr);
    return is_unified && !memory.image && !memory.host;
}

void touch_new(const Memory &memory, cl_mem next, cl_command_queue to) {
    if (!is_of_host(memory, to)) return;
    with_mapped(next, 0, memory.size, to, [&](char *there) { touch_pages(there, memory.size); });
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

void CopyQueues::release() {
    for (auto &[context, queue] : queues) target->clReleaseCommandQueue(queue);
    queues.clear();
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
        with_mapped(next, piece.origin[0], piece.bytes, to,
                    [&](char *there) { read_piece(from, memory, piece, there); });
    }
}

void load_from_store(Memory &memory, Store &store, cl_command_queue to) {
    cl_mem next = next_of(&memory);
    if (!is_of_host(memory, to)) {
        for (auto &piece : pieces_of(memory)) write_piece(to, memory, next, piece, store.take(piece.bytes));
        return;
    }
    with_mapped(next, 0, memory.size, to, [&](char *there) {
        if (store.has_all_at_once()) return copy_to_new(there, store.take(memory.size), memory.size);
        for (auto &piece : pieces_of(memory))
            copy_to_new(there + piece.origin[0], store.take(piece.bytes), piece.bytes);
    });
}

} // namespace tenbin
