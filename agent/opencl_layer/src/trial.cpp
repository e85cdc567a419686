/* Try before move: launches of the program are kept while it runs, and replayed on another device. */
#include "trial.h"

namespace tenbin {

namespace {

std::vector<std::string> texts(const std::vector<double> &values) {
    std::vector<std::string> all;
    for (double value : values) {
        char digits[40];
        snprintf(digits, sizeof(digits), "%.9g", value);
        all.push_back(digits);
    }
    return all;
}

std::string kernel_json(const Launch &launch, const Replay &done) {
    auto sizes = [&](const size_t *of) { return texts({of, of + launch.dimensions}); };
    return Json()
        .text("name", launch.name)
        .list("global_size", sizes(launch.global))
        .list("local_size", launch.has_local ? sizes(launch.local) : std::vector<std::string>())
        .number("launches", double(launch.count))
        .number("ended", double(launch.ended))
        .number("bytes", double(launch.bytes))
        .list("source_s", texts(done.source_s))
        .list("target_s", texts(done.target_s))
        .number("source_call_s", done.source_call_s)
        .number("target_call_s", done.target_call_s)
        .number("compared_bytes", double(done.compared))
        .number("differing_bytes", double(done.differing))
        .seconds("relative_difference", done.relative)
        .text("types", done.types)
        .text("trouble", launch.trouble)
        .end();
}

} // namespace

size_t memory_allowed(const Candidate &place) {
    cl_ulong least = 0;
    for (auto device : {place.device, real_of(the_device())}) {
        cl_ulong bytes = 0;
        target->clGetDeviceInfo(device, CL_DEVICE_GLOBAL_MEM_SIZE, sizeof(bytes), &bytes, nullptr);
        least = least ? std::min(least, bytes) : bytes;
    }
    return size_t(least / 8);
}

std::string try_on(const std::string &key, double watch_s, size_t asked_mib, const Progress &progress) {
    size_t candidate;
    auto alone = keep_moves_away(key, &candidate);
    steps = 0;
    if (candidate == current_candidate()) throw Trouble{"the program is on " + key + " already"};
    const Candidate &place = candidates()[candidate];
    Watching watched(asked_mib ? asked_mib << 20 : memory_allowed(place), true);
    auto began = Clock::now();
    progress("watching the program for " + texts({watch_s})[0] + " s");
    watched.wait(after(began, watch_s), progress);
    watched.end();
    if (watched.found.launches.empty())
        throw Trouble{"the program has launched no kernel meanwhile; watch it for longer", true};
    if (watched.found.looks < 2) throw Trouble{"its device only made copies for the trial; watch it for longer", true};
    Target there(place);
    std::vector<std::string> kernels;
    for (auto &[name, launch] : watched.found.launches) {
        if (is_exiting()) throw Trouble{"the program ends"};
        progress("trying " + launch->name + " on " + key + ", " + std::to_string(kernels.size() + 1) + " of " +
                 std::to_string(watched.found.launches.size()));
        Replay done;
        try {
            if (launch->trouble.empty() && !has_ended(*launch, after(Clock::now(), PATIENCE_S)))
                throw Trouble{"the program's own launch has not ended"};
            if (launch->trouble.empty()) done = replay(*launch, there, watched.found.stopped, progress);
        } catch (const Trouble &trouble) {
            launch->trouble = trouble.what;
            done = Replay();
        }
        kernels.push_back(kernel_json(*launch, done));
    }
    return Json()
        .text("device", candidates()[current_candidate()].key)
        .text("on", key)
        .number("watched_s", watched.found.seen_s)
        .number("busy_s", watched.found.busy_s)
        .number("running_s", watched.found.running_s)
        .number("looks", double(watched.found.looks))
        .number("stopped_s", watched.found.stopped.total_s)
        .number("longest_stop_s", watched.found.stopped.longest_s)
        .number("not_kept", double(watched.found.others))
        .number("steps", steps)
        .list("kernels", kernels)
        .end();
}

} // namespace tenbin
