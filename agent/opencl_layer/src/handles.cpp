/* The table of handles. */
#include "handles.h"

#include <sys/mman.h>

#include <mutex>
#include <vector>

namespace tenbin {

const cl_icd_dispatch *target;

namespace {

constexpr size_t MOST_HANDLES = size_t(1) << 22; /* 256 MiB of addresses; pages are taken as they are used */

Slot *const table = [] {
    void *there = mmap(nullptr, MOST_HANDLES * sizeof(Slot), PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return there == MAP_FAILED ? nullptr : static_cast<Slot *>(there); /* zeros are the empty slot */
}();

std::mutex &table_lock = *new std::mutex;
std::vector<Slot *> &unused = *new std::vector<Slot *>;
std::atomic<size_t> used{0};

Slot *take_slot() {
    std::lock_guard<std::mutex> guard(table_lock);
    if (!unused.empty()) {
        Slot *slot = unused.back();
        unused.pop_back();
        return slot;
    }
    size_t index = used.load(std::memory_order_relaxed);
    if (!table || index == MOST_HANDLES) return nullptr;
    used.store(index + 1, std::memory_order_release);
    return &table[index];
}

bool raise(std::atomic<int32_t> &count) {
    int32_t now = count.load(std::memory_order_relaxed);
    while (now > 0)
        if (count.compare_exchange_weak(now, now + 1, std::memory_order_acq_rel)) return true;
    return false;
}

} // namespace

Slot *give_slot(Kind kind, Object *object) {
    Slot *slot = take_slot();
    if (!slot) return nullptr;
    slot->generation++;
    slot->object = object;
    object->slot = slot;
    slot->held.store(1, std::memory_order_relaxed);
    slot->retained.store(1, std::memory_order_relaxed);
    slot->kind.store(kind, std::memory_order_release);
    return slot;
}

Slot *find_slot(const void *handle, Kind kind) {
    size_t offset = reinterpret_cast<uintptr_t>(handle) - reinterpret_cast<uintptr_t>(table);
    if (offset >= MOST_HANDLES * sizeof(Slot) || offset % sizeof(Slot)) return nullptr;
    Slot *slot = &table[offset / sizeof(Slot)];
    return slot->kind.load(std::memory_order_acquire) == kind ? slot : nullptr;
}

Slot *slot_at(size_t index) {
    return index < used.load(std::memory_order_acquire) ? &table[index] : nullptr;
}

bool hold(Slot *slot) { return raise(slot->held); }

void drop(Slot *slot) {
    if (slot->held.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
    Object *object = slot->object;
    void *real = object->real;
    if (real) object->let_go(real); /* it may still ask for its kind */
    slot->kind.store(Kind::none, std::memory_order_release);
    delete object; /* may drop others */
    std::lock_guard<std::mutex> guard(table_lock);
    unused.push_back(slot);
}

void Object::let_go(void *last) { release_real(slot->kind.load(std::memory_order_relaxed), last); }

bool retain(Slot *slot) {
    if (!hold(slot)) return false;
    slot->retained.fetch_add(1, std::memory_order_relaxed);
    return true;
}

bool release(Slot *slot) {
    int32_t now = slot->retained.load(std::memory_order_relaxed);
    do
        if (now <= 0) return false; /* the rest belongs to other objects */
    while (!slot->retained.compare_exchange_weak(now, now - 1, std::memory_order_acq_rel));
    drop(slot);
    return true;
}

void release_real(Kind kind, void *real) {
    switch (kind) {
    case Kind::context: target->clReleaseContext(static_cast<cl_context>(real)); break;
    case Kind::queue: target->clReleaseCommandQueue(static_cast<cl_command_queue>(real)); break;
    case Kind::memory: target->clReleaseMemObject(static_cast<cl_mem>(real)); break;
    case Kind::sampler: target->clReleaseSampler(static_cast<cl_sampler>(real)); break;
    case Kind::program: target->clReleaseProgram(static_cast<cl_program>(real)); break;
    case Kind::kernel: target->clReleaseKernel(static_cast<cl_kernel>(real)); break;
    case Kind::event: target->clReleaseEvent(static_cast<cl_event>(real)); break;
    case Kind::none:
    case Kind::platform:
    case Kind::device: break;
    }
}

} // namespace tenbin
