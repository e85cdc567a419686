/* Drivers compile or load a kernel at its first launch on a device: that launch is made before the program gets there.
 *
 * No kernel runs on contents of another moment: launches are kept as for a trial, each with copies of what it finds.
 * Those run that have ended in the program itself. Whatever fails here is left to the program's own first launch. */
#include "trial.h"

namespace tenbin {

namespace {

constexpr size_t MOST_BYTES = size_t(256) << 20; /* of device memory for copies */
constexpr double MOST_S = 2.0;                   /* for all launches together */

/* Many programs make a kernel for each launch: between launches there is none. */
bool may_launch() {
    bool found = false;
    for_each<Program>([&](Program &program) { found = found || program.recipe; });
    return found;
}

/* A kernel that prints would do so twice. */
bool may_print(const Recipe &recipe) {
    if (recipe.text.find("printf") != std::string::npos || recipe.text.find("#include") != std::string::npos ||
        recipe.options.find("printf") != std::string::npos)
        return true;
    for (auto &[name, header] : recipe.headers)
        if (may_print(*header)) return true;
    for (auto &input : recipe.inputs)
        if (may_print(*input)) return true;
    return false;
}

bool is_harmless(const Launch &launch) {
    return launch.trouble.empty() && !launch.on_host && !may_print(*launch.recipe);
}

size_t memory_for_copies() {
    size_t least = MOST_BYTES;
    for (auto &place : candidates()) least = std::min(least, memory_allowed(place));
    return least;
}

/* The program's own memory comes first. */
bool has_room(cl_device_id device, size_t bytes) {
    cl_ulong all = 0;
    target->clGetDeviceInfo(device, CL_DEVICE_GLOBAL_MEM_SIZE, sizeof(all), &all, nullptr);
    return bytes < all / 2;
}

} // namespace

void WarmUp::watch(double watch_s, const std::function<void()> &meanwhile) {
    if (watch_s <= 0 || !may_launch()) return meanwhile();
    auto until = after(Clock::now(), watch_s);
    Watching watched(memory_for_copies());
    meanwhile();
    watched.wait(until, [](const std::string &) {});
    watched.end();
    for (auto &[name, launch] : watched.found.launches) {
        try {
            if (!is_harmless(*launch) || !has_ended(*launch, after(until, watch_s))) continue;
            take_contents(*launch, real_of(the_device()));
            launches.push_back(launch);
        } catch (const Trouble &) {
        } catch (const std::exception &) {
        }
    }
}

void WarmUp::run(const Prepared &prepared) const noexcept {
    unsigned warmed = 0;
    auto until = after(Clock::now(), MOST_S);
    cl_device_id device = candidates()[prepared.candidate].device;
    for (auto &launch : launches) {
        cl_program program = prepared.find(launch->recipe);
        if (!program || !has_room(device, bytes_beside + 2 * launch->bytes)) continue;
        if (Clock::now() >= until || is_exiting()) break;
        try {
            run_first(*launch, program, device, until);
            warmed++;
        } catch (const Trouble &) {
        } catch (const std::exception &) {
        }
    }
    note_warmed(warmed);
}

} // namespace tenbin
