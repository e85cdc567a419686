/* Requests to this process: a Unix socket TENBIN_OPENCL_FOLDER/PID, one line each, answered by a line of JSON. */
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <system_error>
#include <thread>

#include "json.h"
#include "move.h"

namespace tenbin {

namespace {

std::mutex &start_lock = *new std::mutex;
std::atomic<pid_t> started{0}; /* the process that listens */
char socket_path[sizeof(sockaddr_un::sun_path)];

/* Compilers of drivers register handlers at their first use. */
struct Request {
    Request() { leave_first(); }
    ~Request() { leave_first(); }
};

/* "move KEY PATIENCE", "park PATIENCE [FOLDER]", "resume [KEY]", "estimate KEY", "try KEY WATCH_S MIB", "status". */
void obey(const std::string &request, const Progress &progress, const std::function<void(std::string)> &answer) {
    auto word_end = [&](size_t from) { return std::min(request.find(' ', from), request.size()); };
    size_t first = word_end(0);
    std::string verb = request.substr(0, first);
    std::string rest = first < request.size() ? request.substr(first + 1) : "";
    size_t space = std::min(rest.find(' '), rest.size());
    std::string head = rest.substr(0, space), tail = space < rest.size() ? rest.substr(space + 1) : "";
    if (verb == "status") return answer(status_json());
    Request now;
    try {
        if (verb == "move")
            move_to(head, atof(tail.c_str()));
        else if (verb == "park")
            park(tail, atof(head.c_str()));
        else if (verb == "estimate")
            estimate(head);
        else if (verb == "resume")
            return resume(rest, [&] { answer(status_json()); });
        else if (verb == "try") {
            char *end;
            double watch_s = strtod(tail.c_str(), &end);
            return answer(try_on(head, watch_s, strtoul(end, nullptr, 10), progress));
        }
#ifdef TENBIN_OPENCL_TESTS
        else if (verb == "fail")
            fail_at = atoi(rest.c_str());
#endif
        else
            return answer(Json().text("trouble", "unknown request " + verb).end());
    } catch (const Trouble &trouble) {
        Json said = Json().text("trouble", trouble.what).boolean("postponed", trouble.passes);
        return answer(said.text("code", trouble.code).end());
    }
    answer(status_json());
}

/* Only this user, or root, may ask. */
bool may_ask(int peer) {
    ucred who{};
    socklen_t size = sizeof(who);
    return getsockopt(peer, SOL_SOCKET, SO_PEERCRED, &who, &size) == 0 && (who.uid == geteuid() || who.uid == 0);
}

/* A descriptor that the program may have closed, and its number may be another file's of the program by now. */
struct Descriptor {
    int number;
    ino_t inode = 0;
    explicit Descriptor(int made) : number(made) {
        struct stat about;
        if (made >= 0 && fstat(made, &about) == 0) inode = about.st_ino;
    }
    bool is_ours() const {
        struct stat about;
        return number >= 0 && fstat(number, &about) == 0 && S_ISSOCK(about.st_mode) && about.st_ino == inode;
    }
    void close() const {
        if (is_ours()) ::close(number);
    }
};

bool send_line(const Descriptor &peer, std::string line) {
    line += "\n";
    for (size_t done = 0; done < line.size();) {
        if (!peer.is_ours()) return false;
        ssize_t n = send(peer.number, line.data() + done, line.size() - done, MSG_NOSIGNAL);
        if (n <= 0) return false;
        done += size_t(n);
    }
    return true;
}

bool has_left(const Descriptor &peer) {
    pollfd one{peer.number, 0, 0};
    return !peer.is_ours() || (poll(&one, 1, 0) > 0 && (one.revents & (POLLHUP | POLLERR)));
}

void serve(Descriptor peer) {
    timeval patience{5, 0};
    setsockopt(peer.number, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
    setsockopt(peer.number, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof(patience));
    std::string line;
    char c = 0;
    while (line.size() < 8192 && recv(peer.number, &c, 1, 0) == 1 && c != '\n') line += c;
    if (c != '\n') { /* whoever asked has ended meanwhile: half a request is none */
        peer.close();
        return;
    }
    auto progress = [peer](const std::string &text) {
        if (text.empty() ? has_left(peer) : !send_line(peer, Json().text("progress", text).end()))
            throw Trouble{"nobody waits for the answer"};
    };
    auto answer = [peer](const std::string &text) { send_line(peer, text); };
    if (may_ask(peer.number))
        obey(line, progress, answer);
    else
        answer(Json().text("trouble", "not your process").end());
    peer.close();
}

int open_socket() {
    const char *folder = getenv("TENBIN_OPENCL_FOLDER");
    if (!folder || !*folder) return -1; /* nobody asks */
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    int length = snprintf(address.sun_path, sizeof(address.sun_path), "%s/%d", folder, int(getpid()));
    if (length >= int(sizeof(address.sun_path))) return -1;
    int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (listener < 0) return -1;
    unlink(address.sun_path); /* of an earlier process of this number */
    fchmod(listener, 0600); /* Linux gives it to the file; a umask would be that of all threads */
    if (bind(listener, reinterpret_cast<sockaddr *>(&address), sizeof(address)) != 0 || listen(listener, 8) != 0) {
        close(listener);
        return -1;
    }
    memcpy(socket_path, address.sun_path, sizeof(socket_path));
    return listener;
}

/* Each request has a thread, so that the status can be asked during a move. */
void listen_forever(Descriptor listener) {
    for (;;) {
        /* One that is closed while it waits here takes one caller more. */
        if (!is_exiting() && !listener.is_ours()) listener = Descriptor(open_socket());
        int peer = listener.is_ours() ? accept4(listener.number, nullptr, nullptr, SOCK_CLOEXEC) : -1;
        if (peer < 0) {
            timespec pause{0, 10000000}; /* the program has no file left, maybe for long */
            nanosleep(&pause, nullptr);
            continue;
        }
        try {
            std::thread(serve, Descriptor(peer)).detach();
        } catch (const std::system_error &) { /* the program has no thread left */
            close(peer);
        }
    }
}

#ifdef TENBIN_OPENCL_TESTS
std::atomic<unsigned long> calls{0};
unsigned long move_every, fail_every;
std::atomic<bool> moving{false}; /* then other threads go on, because their calls may be waited for */

/* Move to the next device every so many calls; let a step of every so many moves fail. */
void move_now_and_then() {
    static std::atomic<unsigned long> moves{0};
    if (moving || is_exiting() || calls.fetch_add(1) % move_every != move_every - 1 || candidates().empty()) return;
    if (moving.exchange(true)) return;
    unsigned long n = moves.fetch_add(1);
    fail_at = fail_every && n % fail_every == fail_every - 1 ? int(n / fail_every % 40) + 1 : 0;
    try {
        move_to(candidates()[(current_candidate() + 1) % candidates().size()].key, 0, 0);
    } catch (const Trouble &) {
    }
    moving = false;
}

void report() {
    if (const char *path = getenv("TENBIN_OPENCL_REPORT"))
        if (FILE *file = fopen(path, "a")) {
            fprintf(file, "%s\n", status_json().c_str());
            fclose(file);
        }
}

void set_up_tests() {
    static bool done = false;
    if (std::exchange(done, true)) return;
    const char *every = getenv("TENBIN_OPENCL_MOVE_EVERY"), *fail = getenv("TENBIN_OPENCL_FAIL_EVERY");
    move_every = every ? strtoul(every, nullptr, 10) : 0;
    fail_every = fail ? strtoul(fail, nullptr, 10) : 0;
    atexit(report);
    if (move_every) before_entering = move_now_and_then;
}
#endif

} // namespace

void take_leave() {
    static std::atomic<pid_t> gone{0};
    if (started.load() != getpid() || gone.exchange(getpid()) == getpid()) return;
    stop_moves();
    if (socket_path[0]) unlink(socket_path);
}

void end_thread() {
    if (started.load() == getpid()) let_thread_end(gettid() == getpid());
}

/* Handlers run in reverse: no move may run after those of drivers. */
void leave_first() { atexit(take_leave); }

/* At the first context, because a child of fork that uses OpenCL makes one of its own. */
void start_control() {
    if (started.load() == getpid()) return;
    std::lock_guard<std::mutex> guard(start_lock);
    pid_t before = started.exchange(getpid());
    if (before == getpid()) return;
    if (before) not_movable("OpenCL in a child of fork");
    int listener = open_socket();
    leave_first();
    after_last = end_thread;
    if (listener >= 0) {
        sigset_t all, old;
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &old); /* signals are the program's own threads' */
        std::thread(listen_forever, Descriptor(listener)).detach();
        pthread_sigmask(SIG_SETMASK, &old, nullptr);
    }
#ifdef TENBIN_OPENCL_TESTS
    set_up_tests();
#endif
}

} // namespace tenbin
