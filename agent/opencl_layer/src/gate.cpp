/* The gate: two plain stores for a call; who closes it pays, by membarrier(2). */
#include "gate.h"

#include <linux/membarrier.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <condition_variable>
#include <mutex>
#include <vector>

#if defined(__SANITIZE_THREAD__)
constexpr bool SANITIZED = true; /* the sanitizer does not know membarrier */
#else
constexpr bool SANITIZED = false;
#endif

namespace tenbin {

void (*before_entering)(), (*after_last)();

namespace {

struct alignas(64) Thread {
    std::atomic<bool> inside{false};
    std::atomic<bool> gone{false};
    int depth = 0;
};

constexpr timespec BETWEEN_POLLS{0, 20000}, FOR_OTHERS{0, 5000000};
constexpr int POLLS = 2500; /* some 0.2 s */

std::mutex &gate_lock = *new std::mutex;
std::condition_variable &opened = *new std::condition_variable;
std::vector<Thread *> &threads = *new std::vector<Thread *>;
std::atomic<bool> closed{false};
std::atomic<int> busy{0};

const bool has_membarrier =
    !SANITIZED && syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, 0, 0) == 0;

__attribute__((tls_model("initial-exec"))) thread_local Thread *mine;

struct Farewell {
    ~Farewell() {
        if (mine) mine->gone.store(true, std::memory_order_release);
        mine = nullptr;
        if (after_last) after_last();
    }
};

Thread *introduce() {
    thread_local Farewell farewell;
    (void)&farewell;
    std::lock_guard<std::mutex> guard(gate_lock);
    for (Thread *thread : threads) /* one that a thread has left behind */
        if (thread->gone.load(std::memory_order_acquire)) {
            thread->gone.store(false, std::memory_order_relaxed);
            thread->depth = 0;
            return mine = thread;
        }
    threads.push_back(new Thread);
    return mine = threads.back();
}

/* A child of fork has one thread, and nobody who would open the gate. */
void in_child() {
    new (&gate_lock) std::mutex;
    new (&opened) std::condition_variable;
    for (Thread *thread : threads)
        if (thread != mine) {
            thread->inside.store(false, std::memory_order_relaxed);
            thread->gone.store(true, std::memory_order_relaxed);
        }
    closed.store(false, std::memory_order_relaxed);
}

const int registered = pthread_atfork(nullptr, nullptr, in_child);

} // namespace

void Inside::enter() {
    Thread *me = mine ? mine : introduce();
    in = true;
    if (me->depth++) return; /* a call from a driver's callback inside a call */
    if (__builtin_expect(before_entering != nullptr, 0)) {
        me->depth = 0;
        before_entering();
        me->depth = 1;
    }
    for (;;) {
        me->inside.store(true, std::memory_order_relaxed);
        if (has_membarrier)
            std::atomic_signal_fence(std::memory_order_seq_cst);
        else
            std::atomic_thread_fence(std::memory_order_seq_cst);
        if (__builtin_expect(!closed.load(std::memory_order_acquire), 1)) return;
        me->inside.store(false, std::memory_order_release);
        std::unique_lock<std::mutex> guard(gate_lock);
        opened.wait(guard, [] { return !closed.load(std::memory_order_acquire); });
    }
}

void Inside::leave() {
    in = false;
    if (--mine->depth == 0) mine->inside.store(false, std::memory_order_release);
}

Busy::Busy(Inside &call) : inside(call) {
    busy.fetch_add(1);
    inside.leave();
}

Busy::~Busy() {
    inside.enter();
    busy.fetch_sub(1);
}

bool is_busy() { return busy.load() > 0; }

void open_gate() {
    {
        std::lock_guard<std::mutex> guard(gate_lock);
        closed.store(false, std::memory_order_release);
    }
    opened.notify_all();
}

/* Give up after a moment: some drivers let a call wait until another thread has made one, which is not let in. */
static bool have_left() {
    std::vector<Thread *> known;
    {
        std::lock_guard<std::mutex> guard(gate_lock);
        known = threads;
    }
    int left = POLLS;
    for (Thread *thread : known)
        while (thread->inside.load(std::memory_order_acquire)) {
            if (left-- == 0) return false;
            nanosleep(&BETWEEN_POLLS, nullptr);
        }
    return true;
}

void close_gate() {
    for (;;) {
        closed.store(true, std::memory_order_seq_cst);
        if (has_membarrier) syscall(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0);
        std::atomic_thread_fence(std::memory_order_seq_cst);
        if (have_left()) return;
        open_gate();
        nanosleep(&FOR_OTHERS, nullptr);
    }
}

} // namespace tenbin
