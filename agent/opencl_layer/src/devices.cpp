/* The one platform and the one device that the program sees.
 *
 * Names are those of the device that the program starts on; limits are what all devices admit that the program may
 * use (TENBIN_OPENCL_DEVICES, else all of the loader's). */
#include <stdio.h>
#include <stdlib.h>

#include <algorithm>
#include <map>

#include "objects.h"

namespace tenbin {

namespace {

/* As probes/opencl.py: a word for a platform's name. */
const std::pair<const char *, const char *> WORDS[] = {
    {"portable computing language", "pocl"}, {"nvidia", "nvidia"}, {"amd", "amd"}, {"intel", "intel"},
    {"rusticl", "rusticl"}, {"clover", "clover"}, {"oclgrind", "oclgrind"},
};

std::string platform_word(std::string name) {
    for (char &c : name) c = char(tolower(c));
    for (auto &[part, word] : WORDS)
        if (name.find(part) != std::string::npos) return word;
    auto is_word = [](char c) { return isalnum(static_cast<unsigned char>(c)) != 0; };
    auto begin = std::find_if(name.begin(), name.end(), is_word);
    auto end = std::find_if_not(begin, name.end(), is_word);
    return begin == end ? "opencl" : std::string(begin, end);
}

template <class Get> std::string text_of(Get get) {
    size_t size = 0;
    if (get(0, nullptr, &size) != CL_SUCCESS || !size) return "";
    std::string text(size, '\0');
    if (get(size, text.data(), nullptr) != CL_SUCCESS) return "";
    return text.c_str();
}

std::string platform_text(cl_platform_id platform, cl_platform_info what) {
    return text_of([&](size_t size, void *value, size_t *ret) {
        return target->clGetPlatformInfo(platform, what, size, value, ret);
    });
}

std::string device_text(cl_device_id device, cl_device_info what) {
    return text_of([&](size_t size, void *value, size_t *ret) {
        return target->clGetDeviceInfo(device, what, size, value, ret);
    });
}

std::vector<Candidate> find_all() {
    std::vector<Candidate> found;
    std::map<std::string, int> count;
    cl_uint n = 0;
    if (target->clGetPlatformIDs(0, nullptr, &n) != CL_SUCCESS) return found;
    std::vector<cl_platform_id> platforms(n);
    if (n) target->clGetPlatformIDs(n, platforms.data(), nullptr);
    for (cl_platform_id platform : platforms) {
        std::string word = platform_word(platform_text(platform, CL_PLATFORM_NAME));
        cl_uint m = 0;
        if (target->clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, 0, nullptr, &m) != CL_SUCCESS) continue;
        std::vector<cl_device_id> devices(m);
        if (m) target->clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, m, devices.data(), nullptr);
        for (cl_device_id device : devices)
            found.push_back({platform, device, word + "-" + std::to_string(count[word]++),
                             device_text(device, CL_DEVICE_NAME)});
    }
    return found;
}

template <class T> T device_value(cl_device_id device, cl_device_info what) {
    T value{};
    return target->clGetDeviceInfo(device, what, sizeof(T), &value, nullptr) == CL_SUCCESS ? value : T{};
}

/* Those that TENBIN_OPENCL_DEVICES names, in its order; all where it is not set. Devices of other address widths or
 * byte orders than the first cannot take over its data. */
std::vector<Candidate> choose() {
    std::vector<Candidate> all = find_all(), chosen;
    const char *names = getenv("TENBIN_OPENCL_DEVICES");
    if (!names || !*names) chosen = all;
    std::string rest = names ? names : "";
    while (!rest.empty()) {
        size_t comma = std::min(rest.find(','), rest.size());
        std::string key = rest.substr(0, comma);
        rest.erase(0, comma + 1);
        auto one = std::find_if(all.begin(), all.end(), [&](const Candidate &c) { return c.key == key; });
        if (one != all.end())
            chosen.push_back(*one);
        else
            fprintf(stderr, "tenbin: TENBIN_OPENCL_DEVICES: there is no OpenCL device %s\n", key.c_str());
    }
    if (chosen.empty()) return chosen;
    cl_device_id first = chosen[0].device;
    auto differs = [&](const Candidate &c) {
        return device_value<cl_uint>(c.device, CL_DEVICE_ADDRESS_BITS) !=
                   device_value<cl_uint>(first, CL_DEVICE_ADDRESS_BITS) ||
               device_value<cl_bool>(c.device, CL_DEVICE_ENDIAN_LITTLE) !=
                   device_value<cl_bool>(first, CL_DEVICE_ENDIAN_LITTLE);
    };
    chosen.erase(std::remove_if(chosen.begin(), chosen.end(), differs), chosen.end());
    return chosen;
}

std::atomic<size_t> current{0};

} // namespace

const std::vector<Candidate> &candidates() {
    static const std::vector<Candidate> &found = *new std::vector<Candidate>(choose());
    return found;
}

Platform *the_platform() {
    static Platform *one = [] {
        if (candidates().empty()) return static_cast<Platform *>(nullptr);
        auto platform = new Platform;
        wrap(platform, candidates()[0].platform, nullptr);
        return platform;
    }();
    return one;
}

Device *the_device() {
    static Device *one = [] {
        if (candidates().empty()) return static_cast<Device *>(nullptr);
        auto device = new Device;
        wrap(device, candidates()[0].device, nullptr);
        return device;
    }();
    return one;
}

size_t current_candidate() { return current.load(); }

void set_current(size_t candidate) {
    current.store(candidate);
    the_platform()->real = candidates()[candidate].platform;
    the_device()->real = candidates()[candidate].device;
}

bool is_ours(cl_device_id device) { return get<Device>(device) != nullptr; }

cl_int answer(const void *data, size_t bytes, size_t size, void *value, size_t *size_ret) {
    if (value && size < bytes) return CL_INVALID_VALUE;
    if (value && bytes) memcpy(value, data, bytes);
    if (size_ret) *size_ret = bytes;
    return CL_SUCCESS;
}

cl_int CL_API_CALL layer_clGetPlatformIDs(cl_uint n, cl_platform_id *platforms, cl_uint *count) {
    if ((!platforms && !count) || (platforms && !n)) return CL_INVALID_VALUE;
    Platform *one = the_platform();
    if (count) *count = one ? 1 : 0;
    if (!one) return -1001; /* CL_PLATFORM_NOT_FOUND_KHR */
    if (platforms) platforms[0] = handle_of(one);
    return CL_SUCCESS;
}

cl_int CL_API_CALL layer_clGetDeviceIDs(cl_platform_id platform, cl_device_type type, cl_uint n,
                                        cl_device_id *devices, cl_uint *count) {
    if (!get<Platform>(platform) && (platform || !the_platform())) return CL_INVALID_PLATFORM;
    if ((!devices && !count) || (devices && !n)) return CL_INVALID_VALUE;
    cl_device_type known = CL_DEVICE_TYPE_CPU | CL_DEVICE_TYPE_GPU | CL_DEVICE_TYPE_ACCELERATOR |
                           CL_DEVICE_TYPE_CUSTOM | CL_DEVICE_TYPE_DEFAULT;
    if (!type || (type != CL_DEVICE_TYPE_ALL && (type & ~known))) return CL_INVALID_DEVICE_TYPE;
    cl_device_type types = CL_DEVICE_TYPE_DEFAULT; /* of all devices that it may become */
    for (auto &one : candidates()) types |= device_value<cl_device_type>(one.device, CL_DEVICE_TYPE);
    bool fits = type & types;
    if (count) *count = fits;
    if (!fits) return CL_DEVICE_NOT_FOUND;
    if (devices) devices[0] = handle_of(the_device());
    return CL_SUCCESS;
}

cl_int CL_API_CALL layer_clRetainDevice(cl_device_id device) {
    return is_ours(device) ? CL_SUCCESS : CL_INVALID_DEVICE; /* a root device: nothing is counted */
}

cl_int CL_API_CALL layer_clReleaseDevice(cl_device_id device) { return layer_clRetainDevice(device); }

} // namespace tenbin
