/* Move, park and resume: until the commit all is as it was; the gate opens again whatever happens. */
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>

#include "json.h"
#include "move.h"

namespace tenbin {

namespace {

double unix_time() {
    return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

std::mutex &move_lock = *new std::mutex; /* one move at a time */
std::unique_ptr<Store> &parked = *new std::unique_ptr<Store>;
std::unique_ptr<Prepared> &kept = *new std::unique_ptr<Prepared>; /* while parked */
std::unique_ptr<WarmUp> &warm_up = *new std::unique_ptr<WarmUp>;  /* likewise */
std::condition_variable &resumed = *new std::condition_variable;
std::atomic<bool> is_closed_by_park{false};
std::atomic<int> exiting{0}; /* threads that wait for moves to end */

std::mutex &facts_lock = *new std::mutex; /* of what follows */
std::vector<std::pair<std::string, double>> &found_hindrances = *new std::vector<std::pair<std::string, double>>;
struct Facts {
    unsigned long moves = 0, parks = 0, failures = 0;
    double pause_s = -1, total_s = -1, park_s = -1, parked_bytes = 0;
    int steps = 0;
    unsigned warmed = 0;
    bool has_estimate = false;
    Estimate estimate;
    std::string parked_in, trouble;
} &facts = *new Facts;

std::mutex &wait_lock = *new std::mutex;
std::condition_variable &something_changed = *new std::condition_variable;
std::atomic<bool> waiting{false}; /* a move is postponed */
unsigned long attempts = 0;
bool asked = false;

size_t find_candidate(const std::string &key) {
    std::string keys;
    for (size_t i = 0; i < candidates().size(); i++) {
        if (candidates()[i].key == key) return i;
        keys += (keys.empty() ? "" : ", ") + candidates()[i].key;
    }
    if (key.find('@') != std::string::npos)
        throw Trouble{"the program cannot leave this machine for " + key + "; choose from " + keys +
                      ", or let it save itself with tenbin.Checkpoint"};
    throw Trouble{"the program may not use a device " + key + "; choose from " + keys};
}

void check_movable() {
    if (is_exiting()) throw Trouble{"the program ends"};
    std::lock_guard<std::mutex> guard(facts_lock);
    if (!found_hindrances.empty()) throw Trouble{"the program cannot be moved: it uses " + found_hindrances[0].first};
}

/* Wait until a user event is set, or a moment. */
void wait_for_change() {
    std::unique_lock<std::mutex> guard(wait_lock);
    attempts++;
    something_changed.notify_all();
    something_changed.wait_for(guard, std::chrono::milliseconds(10), [] { return asked; });
    asked = false;
}

/* Try again and again what is postponed, until patience ends. */
template <class Function> void with_patience(double patience_s, Function attempt) {
    auto deadline = after(Clock::now(), patience_s);
    struct Waiting {
        ~Waiting() {
            waiting = false;
            std::lock_guard<std::mutex> guard(wait_lock);
            attempts++;
            something_changed.notify_all();
        }
    } done;
    for (;;) {
        try {
            attempt();
            return;
        } catch (const Trouble &trouble) {
            if (!trouble.passes) throw;
            if (Clock::now() >= deadline || is_exiting()) throw Trouble{"postponed, and given up: " + trouble.what, true};
        }
        waiting = true;
        wait_for_change();
    }
}

void note_failure(const Trouble &trouble) {
    std::lock_guard<std::mutex> guard(facts_lock);
    facts.failures++;
    facts.trouble = trouble.what;
}

void note_estimate(const Prepared &prepared) {
    std::lock_guard<std::mutex> guard(facts_lock);
    facts.has_estimate = true;
    facts.estimate = prepared.estimate();
}

void move_once(Prepared &prepared, Clock::time_point began) {
    note_estimate(prepared);
    auto closing = Clock::now();
    close_gate();
    try {
        check_movable();
        drain();
        make_next(prepared, nullptr, nullptr);
        keep_mappings(prepared.from);
    } catch (const Trouble &) {
        undo();
        open_gate();
        throw;
    }
    record_events();
    Replaced unused = keep_left(), old = commit(prepared.candidate);
    auto now = Clock::now();
    {
        std::lock_guard<std::mutex> guard(facts_lock);
        facts.moves++;
        facts.pause_s = seconds(now - closing);
        facts.total_s = seconds(now - began);
        facts.steps = steps;
    }
    open_gate();
    old.release();
    unused.release();
}

double available_memory() {
    double kib = 0;
    if (FILE *file = fopen("/proc/meminfo", "r")) {
        char line[128];
        while (fgets(line, sizeof(line), file))
            if (sscanf(line, "MemAvailable: %lf kB", &kib) == 1) break;
        fclose(file);
    }
    return kib * 1024;
}

std::unique_ptr<Store> make_store(const std::string &folder, size_t bytes) {
    if (!folder.empty()) return store_in_folder(folder, bytes);
    if (double(bytes) > 0.9 * available_memory())
        throw Trouble{"too little free memory for " + std::to_string(bytes >> 20) + " MiB; park to a folder", false,
                      "host-memory"};
    return store_in_memory(bytes);
}

size_t count_bytes() { /* with the gate closed */
    size_t sum = 0;
    for_each<Memory>([&](Memory &memory) { sum += memory.parent ? 0 : bytes_of(memory); });
    return sum;
}

/* `store`: made while the program ran, for `room` bytes. */
void park_once(const std::string &folder, Clock::time_point began, std::unique_ptr<Store> &store, size_t &room) {
    size_t bytes = 0;
    CopyQueues from;
    auto closing = Clock::now();
    close_gate();
    try {
        check_movable();
        drain();
        bytes = count_bytes();
        if (bytes > room) {
            store = make_store(folder, bytes);
            room = bytes;
        }
        step(CL_SUCCESS, "make room for the contents");
        save_contents(*store, from);
        step(CL_SUCCESS, "save the contents");
        keep_mappings(from);
    } catch (const Trouble &) {
        open_gate();
        throw;
    }
    record_events();
    kept = std::make_unique<Prepared>(current_candidate());
    kept->keep();
    detach().release();
    parked = std::move(store);
    is_closed_by_park = true;
    std::lock_guard<std::mutex> guard(facts_lock);
    facts.parks++;
    facts.park_s = seconds(Clock::now() - closing);
    facts.total_s = seconds(Clock::now() - began);
    facts.parked_bytes = double(bytes);
    facts.parked_in = parked->place();
    facts.steps = steps;
}

} // namespace

void not_movable(const char *what) {
    std::lock_guard<std::mutex> guard(facts_lock);
    for (auto &one : found_hindrances)
        if (one.first == what) return;
    found_hindrances.emplace_back(what, unix_time());
}

/* Drivers take themselves down at the end of a process: nothing may move then. A parked program waits before, as at any
 * call, because its exit handlers may call OpenCL. */
void stop_moves() {
    exiting++;
    std::unique_lock<std::mutex> guard(move_lock);
    resumed.wait(guard, [] { return !is_parked(); });
    guard.release(); /* for ever */
}

/* exit() ends its thread's own objects, then calls handlers in reverse. What a driver registers in a request under way
 * has to be called after ours, so the main thread waits for the request, and ours is registered again. */
void let_thread_end(bool is_main) {
    std::unique_lock<std::mutex> guard(move_lock, std::try_to_lock);
    if (guard) return; /* nothing is under way */
    if (is_main) {
        exiting++;
        guard.lock();
        exiting--;
    }
    leave_first();
}

void note_warmed(unsigned launches) {
    std::lock_guard<std::mutex> guard(facts_lock);
    facts.warmed = launches;
}

bool is_parked() { return is_closed_by_park; }
bool is_exiting() { return exiting > 0; }

std::unique_lock<std::mutex> keep_moves_away(const std::string &key, size_t *candidate) {
    std::unique_lock<std::mutex> guard(move_lock);
    if (is_parked()) throw Trouble{"the program is parked; resume it"};
    *candidate = find_candidate(key);
    check_movable();
    return guard;
}

void user_event_set() {
    if (!waiting.load(std::memory_order_relaxed)) return;
    std::unique_lock<std::mutex> guard(wait_lock);
    unsigned long before = attempts;
    asked = true;
    something_changed.notify_all();
    /* The next event would be unset again soon, so the program waits until the move has had its chance. */
    something_changed.wait_for(guard, std::chrono::milliseconds(200), [&] { return attempts > before; });
}

/* All of a move but its pause. */
static void prepare(Prepared &prepared, double watch_s) {
    auto began = Clock::now();
    WarmUp first_launches;
    first_launches.watch(watch_s, [&] { prepared.make(); });
    first_launches.run(prepared);
    prepared.prepared_in(seconds(Clock::now() - began));
    prepared.copy();
}

void move_to(const std::string &key, double patience_s, double watch_s) {
    std::lock_guard<std::mutex> guard(move_lock);
    if (is_parked()) throw Trouble{"the program is parked; resume it"};
    size_t candidate = find_candidate(key);
    auto began = Clock::now();
    steps = 0;
    try {
        check_movable();
        Prepared prepared(candidate);
        prepare(prepared, watch_s);
        with_patience(patience_s, [&] {
            prepared.make(); /* of programs that came meanwhile */
            move_once(prepared, began);
        });
    } catch (const Trouble &trouble) {
        note_failure(trouble);
        throw;
    }
}

void estimate(const std::string &key) {
    std::lock_guard<std::mutex> guard(move_lock);
    if (is_parked()) throw Trouble{"the program is parked; resume it"};
    size_t candidate = find_candidate(key);
    check_movable();
    steps = 0;
    Prepared prepared(candidate);
    prepare(prepared, WATCH_S);
    note_estimate(prepared);
}

void park(const std::string &folder, double patience_s) {
    std::lock_guard<std::mutex> guard(move_lock);
    if (is_parked()) throw Trouble{"the program is parked already"};
    auto began = Clock::now();
    steps = 0;
    try {
        check_movable();
        close_gate();
        size_t room = count_bytes();
        open_gate();
        std::unique_ptr<Store> store;
        auto launches = std::make_unique<WarmUp>();
        launches->watch(candidates().size() > 1 ? WATCH_S : 0, [&] { store = make_store(folder, room); });
        with_patience(patience_s, [&] { park_once(folder, began, store, room); });
        launches->bytes_beside = room;
        warm_up = std::move(launches);
    } catch (const Trouble &trouble) {
        note_failure(trouble);
        throw;
    }
}

void resume(const std::string &key, const std::function<void()> &answer) {
    std::lock_guard<std::mutex> guard(move_lock);
    if (!is_parked()) throw Trouble{"the program is not parked"};
    size_t candidate = key.empty() ? current_candidate() : find_candidate(key);
    auto began = Clock::now();
    steps = 0;
    try {
        parked->rewind();
        Prepared nothing(candidate);
        try {
            bool is_known = candidate == kept->candidate;
            make_next(is_known ? *kept : nothing, parked.get(), is_known ? nullptr : warm_up.get());
        } catch (const Trouble &) {
            undo();
            kept->release();
            throw;
        }
    } catch (const Trouble &trouble) {
        note_failure(trouble);
        throw;
    }
    commit(candidate);
    {
        std::lock_guard<std::mutex> facts_guard(facts_lock);
        facts.total_s = seconds(Clock::now() - began);
        facts.parked_bytes = 0;
        facts.steps = steps;
    }
    is_closed_by_park = false;
    resumed.notify_all();
    open_gate();
    parked.reset();
    kept.reset();
    warm_up.reset();
    answer(); /* before the lock is let go, for which a program waits that is at its end */
}

static std::string estimate_json() {
    if (!facts.has_estimate) return "null";
    const Estimate &e = facts.estimate;
    return Json()
        .number("bytes", e.bytes)
        .number("dirty_bytes", e.dirty_bytes)
        .number("dirty_s", e.dirty_s)
        .number("prepare_s", e.prepare_s)
        .number("copy_s", e.copy_s)
        .number("drain_s", e.drain_s)
        .seconds("bytes_per_s", e.bytes_per_s)
        .end();
}

/* Without a look at the objects, because they may change while the gate is open. */
std::string status_json() {
    std::vector<std::string> devices, reasons;
    for (auto &one : candidates())
        devices.push_back(Json().text("key", one.key).text("name", one.name).end());
    std::lock_guard<std::mutex> guard(facts_lock);
    for (auto &[what, since] : found_hindrances)
        reasons.push_back(Json().text("uses", what).number("since", since).end());
    return Json()
        .number("pid", getpid())
        .text("state", is_parked() ? "parked" : "running")
        .text("device", candidates().empty() ? "" : candidates()[current_candidate()].key)
        .list("devices", devices)
        .boolean("movable", found_hindrances.empty())
        .list("hindrances", reasons)
        .boolean("postponed", waiting.load())
        .text("parked_in", is_parked() ? facts.parked_in : "")
        .number("parked_bytes", facts.parked_bytes)
        .number("moves", double(facts.moves))
        .number("parks", double(facts.parks))
        .number("failures", double(facts.failures))
        .text("last_trouble", facts.trouble)
        .seconds("last_pause_s", facts.pause_s)
        .seconds("last_total_s", facts.total_s)
        .seconds("last_park_s", facts.park_s)
        .number("last_steps", facts.steps)
        .number("last_warmed", facts.warmed)
        .object("estimate", estimate_json())
        .end();
}

} // namespace tenbin
