/* Contents of a parked program: in memory, or in a file by direct I/O, several transfers under way at once. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <deque>
#include <future>

#include "move.h"

namespace tenbin {

namespace {

constexpr size_t ALIGNMENT = 4096, SLOTS = 8;

size_t padded(size_t bytes) { return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT; }

Trouble system_trouble(const std::string &what) { return {what + ": " + strerror(errno)}; }

class InMemory : public Store {
    char *base;
    size_t size, at = 0;

  public:
    explicit InMemory(size_t bytes) : size(std::max<size_t>(bytes, 1)) {
        void *there = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (there == MAP_FAILED) throw system_trouble("no memory to park in");
        touch_pages(there, size);
        base = static_cast<char *>(there);
    }
    ~InMemory() override { munmap(base, size); }
    char *space(size_t) override { return base + at; }
    void put(size_t bytes) override { at += bytes; }
    void written() override {}
    void rewind() override { at = 0; }
    const char *take(size_t bytes) override {
        at += bytes;
        return base + at - bytes;
    }
    bool has_all_at_once() const override { return true; }
    const char *place() const override { return "memory"; }
};

struct Buffer {
    char *data = nullptr;
    size_t size = 0;
    std::future<std::string> transfer; /* gives what went wrong */
    ~Buffer() {
        if (transfer.valid()) transfer.wait();
        free(data);
    }
    void room(size_t bytes) {
        if (size >= bytes) return;
        free(data);
        data = static_cast<char *>(aligned_alloc(ALIGNMENT, padded(bytes)));
        size = data ? padded(bytes) : 0;
        if (!data) throw Trouble{"no memory for the transfer to a file"};
        touch_pages(data, size);
    }
    void finish() {
        if (!transfer.valid()) return;
        std::string trouble = transfer.get();
        if (!trouble.empty()) throw Trouble{trouble};
    }
};

/* The file has no name, so its space is free again however the program ends. */
class InFile : public Store {
    int file = -1;
    std::string folder;
    std::deque<Buffer> buffers{SLOTS};
    std::vector<std::pair<off_t, size_t>> chunks; /* as they were put */
    off_t end = 0;
    size_t next = 0, ahead = 0; /* chunks taken, and asked for */

    std::string transfer(bool writes, char *data, size_t bytes, off_t offset) const {
        for (size_t done = 0; done < bytes;) {
            ssize_t n = writes ? pwrite(file, data + done, bytes - done, offset + off_t(done))
                               : pread(file, data + done, bytes - done, offset + off_t(done));
            if (n < 0 && errno == EINTR) continue;
            if (n < 0 && errno == EINVAL && drop_direct()) continue;
            if (n <= 0) return folder + ": " + (n ? strerror(errno) : "the file is too short");
            done += size_t(n);
        }
        return "";
    }
    bool drop_direct() const { /* some file systems take the flag at open and refuse the transfer */
        int flags = fcntl(file, F_GETFL);
        return (flags & O_DIRECT) && fcntl(file, F_SETFL, flags & ~O_DIRECT) == 0;
    }
    void start(bool writes, Buffer &buffer, size_t bytes, off_t offset) {
        buffer.transfer = std::async(std::launch::async, [this, writes, &buffer, bytes, offset] {
            return transfer(writes, buffer.data, padded(bytes), offset);
        });
    }

  public:
    InFile(const std::string &where, size_t bytes) : folder(where) {
        struct statvfs space;
        if (statvfs(where.c_str(), &space) != 0) throw system_trouble(where);
        if (double(space.f_bavail) * double(space.f_frsize) < double(bytes))
            throw Trouble{where + ": too little space for " + std::to_string(bytes >> 20) + " MiB"};
        constexpr int FLAGS = O_RDWR | O_TMPFILE | O_CLOEXEC;
        file = open(where.c_str(), FLAGS | O_DIRECT, 0600);
        if (file < 0 && errno == EINVAL) file = open(where.c_str(), FLAGS, 0600);
        if (file < 0) throw system_trouble(where + ": no file without a name can be made there");
        /* Before the program stops: writes to blocks that the file has go side by side. */
        if (bytes && fallocate(file, 0, 0, off_t(padded(bytes))) != 0 && errno == ENOSPC) throw system_trouble(where);
        for (auto &buffer : buffers) buffer.room(std::min(bytes, CHUNK));
    }
    ~InFile() override {
        buffers.clear(); /* waits for what is under way */
        close(file);
    }
    char *space(size_t bytes) override {
        Buffer &buffer = buffers[chunks.size() % SLOTS];
        buffer.finish();
        buffer.room(bytes);
        return buffer.data;
    }
    void put(size_t bytes) override {
        start(true, buffers[chunks.size() % SLOTS], bytes, end);
        chunks.emplace_back(end, bytes);
        end += off_t(padded(bytes));
    }
    void written() override {
        for (auto &buffer : buffers) buffer.finish();
        if (!(fcntl(file, F_GETFL) & O_DIRECT) && fsync(file) != 0) throw system_trouble(folder);
    }
    void rewind() override {
        for (auto &buffer : buffers)
            if (buffer.transfer.valid()) buffer.transfer.wait();
        for (auto &buffer : buffers) buffer.transfer = {};
        next = ahead = 0;
        read_ahead();
    }
    void read_ahead() {
        for (; ahead < chunks.size() && ahead < next + SLOTS - 1; ahead++) { /* all but the one taken last */
            Buffer &buffer = buffers[ahead % SLOTS];
            buffer.room(chunks[ahead].second);
            start(false, buffer, chunks[ahead].second, chunks[ahead].first);
        }
    }
    const char *take(size_t) override {
        read_ahead();
        Buffer &buffer = buffers[next++ % SLOTS];
        buffer.finish();
        return buffer.data;
    }
    bool has_all_at_once() const override { return false; }
    const char *place() const override { return "file"; }
};

} // namespace

std::unique_ptr<Store> store_in_memory(size_t bytes) { return std::make_unique<InMemory>(bytes); }

std::unique_ptr<Store> store_in_folder(const std::string &folder, size_t bytes) {
    return std::make_unique<InFile>(folder, bytes);
}

} // namespace tenbin
