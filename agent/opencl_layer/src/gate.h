/* The gate that every call passes: open in normal life, closed while the objects change devices. */
#pragma once
#include <atomic>
#include <string>

namespace tenbin {

/* A call of the program under way. No thread waits for a device while it is inside, because whoever closes the
 * gate waits for all threads inside. */
class Inside {
    bool in = false;

  public:
    Inside() { enter(); }
    ~Inside() {
        if (in) leave();
    }
    Inside(const Inside &) = delete;
    Inside &operator=(const Inside &) = delete;
    void enter();
    void leave();
};

/* Long work of a thread outside the gate (a build) during which nothing may move: a move is postponed. */
class Busy {
    Inside &inside;

  public:
    explicit Busy(Inside &call);
    ~Busy();
    Busy(const Busy &) = delete;
    Busy &operator=(const Busy &) = delete;
};

bool is_busy(); /* asked with the gate closed */
void close_gate();
void open_gate();

class Closed { /* the gate, for a moment */
  public:
    Closed() { close_gate(); }
    ~Closed() { open_gate(); }
    Closed(const Closed &) = delete;
    Closed &operator=(const Closed &) = delete;
};

/* Called by a thread that is about to enter; for tests that move a program every so many calls. */
extern void (*before_entering)();
/* Called at the end of a thread that has entered. */
extern void (*after_last)();

} // namespace tenbin
