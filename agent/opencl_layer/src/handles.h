/* Handles that the program sees: slots of one table, each with the object behind it.
 *
 * A handle stays the same when its object moves to another device; only `real` changes. */
#pragma once
#ifndef CL_TARGET_OPENCL_VERSION
#define CL_TARGET_OPENCL_VERSION 300
#endif
#define CL_USE_DEPRECATED_OPENCL_1_0_APIS
#define CL_USE_DEPRECATED_OPENCL_1_1_APIS
#define CL_USE_DEPRECATED_OPENCL_1_2_APIS
#define CL_USE_DEPRECATED_OPENCL_2_0_APIS
#define CL_USE_DEPRECATED_OPENCL_2_1_APIS
#define CL_USE_DEPRECATED_OPENCL_2_2_APIS
#include <CL/cl_icd.h>

#include <atomic>
#include <cstdint>
#include <utility>

namespace tenbin {

extern const cl_icd_dispatch *target; /* the loader's own table: calls the driver of the object given */

enum class Kind : uint32_t { none, platform, device, context, queue, memory, sampler, program, kernel, event };

struct Object;

struct alignas(64) Slot {
    std::atomic<Kind> kind{Kind::none};
    uint32_t generation = 0;            /* counts the objects that this slot has had */
    std::atomic<int32_t> held{0};       /* by the program and by other objects */
    std::atomic<int32_t> retained{0};   /* by the program alone */
    Object *object = nullptr;
};

struct Object {
    Slot *slot = nullptr;
    void *real = nullptr; /* the driver's object; none while parked */
    void *next = nullptr; /* its successor while a move is prepared, with the gate closed */
    virtual ~Object() = default;
    virtual void let_go(void *last); /* the last reference is gone: release what the driver has */
};

/* An object of which the program holds the first reference; none where the table is full. */
Slot *give_slot(Kind kind, Object *object);
Slot *find_slot(const void *handle, Kind kind);
Slot *slot_at(size_t index); /* none behind the last slot ever given out */
bool hold(Slot *slot);
void drop(Slot *slot);
bool retain(Slot *slot);
bool release(Slot *slot);
void release_real(Kind kind, void *real);

template <class T> T *get(const void *handle) {
    Slot *slot = find_slot(handle, T::kind);
    return slot ? static_cast<T *>(slot->object) : nullptr;
}

/* All objects of a kind; only with the gate closed. */
template <class T, class Function> void for_each(Function function) {
    Slot *slot;
    for (size_t i = 0; (slot = slot_at(i)); i++)
        if (slot->kind.load(std::memory_order_acquire) == T::kind) function(*static_cast<T *>(slot->object));
}

/* A reference of one object to another. */
template <class T> class Ref {
    T *object = nullptr;

  public:
    Ref() = default;
    explicit Ref(T *other) : object(other) {
        if (object) hold(object->slot);
    }
    Ref(Ref &&other) noexcept : object(std::exchange(other.object, nullptr)) {}
    Ref(const Ref &other) : Ref(other.object) {}
    Ref &operator=(Ref other) noexcept {
        std::swap(object, other.object);
        return *this;
    }
    ~Ref() {
        if (object) drop(object->slot);
    }
    T *operator->() const { return object; }
    T *get() const { return object; }
    explicit operator bool() const { return object != nullptr; }
};

/* Give the program a handle of a new object around `real`; what the driver has made is released where it fails. */
template <class T> typename T::Handle wrap(T *object, void *real, cl_int *error) {
    object->real = real;
    object->slot = give_slot(T::kind, object);
    if (!object->slot) {
        release_real(T::kind, real);
        delete object;
        if (error) *error = CL_OUT_OF_HOST_MEMORY;
        return nullptr;
    }
    return reinterpret_cast<typename T::Handle>(object->slot);
}

template <class T> typename T::Handle handle_of(T *object) {
    return object ? reinterpret_cast<typename T::Handle>(object->slot) : nullptr;
}
template <class T> typename T::Handle real_of(const T *object) {
    return object ? static_cast<typename T::Handle>(object->real) : nullptr;
}
template <class T> typename T::Handle next_of(const T *object) {
    return object ? static_cast<typename T::Handle>(object->next) : nullptr;
}

template <class Handle> Handle refuse(cl_int *error, cl_int code) {
    if (error) *error = code;
    return nullptr;
}

} // namespace tenbin
