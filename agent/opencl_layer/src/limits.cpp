/* What the one device tells of itself: of each figure the value that every device admits. */
#include <algorithm>

#include "objects.h"

namespace tenbin {

namespace {

enum class Take { least, most, common, none }; /* none: zero, or an empty list */
enum class Width { uint, ulong, size, sizes };

struct Rule {
    cl_device_info what;
    Take take;
    Width width;
};

constexpr Rule RULES[] = {
    {CL_DEVICE_MAX_COMPUTE_UNITS, Take::least, Width::uint},
    {CL_DEVICE_MAX_WORK_ITEM_DIMENSIONS, Take::least, Width::uint},
    {CL_DEVICE_MAX_WORK_GROUP_SIZE, Take::least, Width::size},
    {CL_DEVICE_MAX_WORK_ITEM_SIZES, Take::least, Width::sizes},
    {CL_DEVICE_PREFERRED_VECTOR_WIDTH_DOUBLE, Take::least, Width::uint},
    {CL_DEVICE_NATIVE_VECTOR_WIDTH_DOUBLE, Take::least, Width::uint},
    {CL_DEVICE_PREFERRED_VECTOR_WIDTH_HALF, Take::least, Width::uint},
    {CL_DEVICE_NATIVE_VECTOR_WIDTH_HALF, Take::least, Width::uint},
    {CL_DEVICE_MAX_READ_IMAGE_ARGS, Take::least, Width::uint},
    {CL_DEVICE_MAX_WRITE_IMAGE_ARGS, Take::least, Width::uint},
    {CL_DEVICE_MAX_READ_WRITE_IMAGE_ARGS, Take::least, Width::uint},
    {CL_DEVICE_MAX_MEM_ALLOC_SIZE, Take::least, Width::ulong},
    {CL_DEVICE_IMAGE2D_MAX_WIDTH, Take::least, Width::size},
    {CL_DEVICE_IMAGE2D_MAX_HEIGHT, Take::least, Width::size},
    {CL_DEVICE_IMAGE3D_MAX_WIDTH, Take::least, Width::size},
    {CL_DEVICE_IMAGE3D_MAX_HEIGHT, Take::least, Width::size},
    {CL_DEVICE_IMAGE3D_MAX_DEPTH, Take::least, Width::size},
    {CL_DEVICE_IMAGE_MAX_BUFFER_SIZE, Take::least, Width::size},
    {CL_DEVICE_IMAGE_MAX_ARRAY_SIZE, Take::least, Width::size},
    {CL_DEVICE_IMAGE_SUPPORT, Take::least, Width::uint},
    {CL_DEVICE_IMAGE_PITCH_ALIGNMENT, Take::most, Width::uint},
    {CL_DEVICE_IMAGE_BASE_ADDRESS_ALIGNMENT, Take::most, Width::uint},
    {CL_DEVICE_MAX_PARAMETER_SIZE, Take::least, Width::size},
    {CL_DEVICE_MAX_SAMPLERS, Take::least, Width::uint},
    {CL_DEVICE_MEM_BASE_ADDR_ALIGN, Take::most, Width::uint},
    {CL_DEVICE_MIN_DATA_TYPE_ALIGN_SIZE, Take::most, Width::uint},
    {CL_DEVICE_SINGLE_FP_CONFIG, Take::common, Width::ulong},
    {CL_DEVICE_DOUBLE_FP_CONFIG, Take::common, Width::ulong},
    {0x1033 /* CL_DEVICE_HALF_FP_CONFIG */, Take::common, Width::ulong},
    {CL_DEVICE_GLOBAL_MEM_SIZE, Take::least, Width::ulong},
    {CL_DEVICE_MAX_CONSTANT_BUFFER_SIZE, Take::least, Width::ulong},
    {CL_DEVICE_MAX_CONSTANT_ARGS, Take::least, Width::uint},
    {CL_DEVICE_LOCAL_MEM_SIZE, Take::least, Width::ulong},
    {CL_DEVICE_PROFILING_TIMER_RESOLUTION, Take::most, Width::size},
    {CL_DEVICE_COMPILER_AVAILABLE, Take::least, Width::uint},
    {CL_DEVICE_LINKER_AVAILABLE, Take::least, Width::uint},
    {CL_DEVICE_QUEUE_PROPERTIES, Take::common, Width::ulong},
    {CL_DEVICE_PRINTF_BUFFER_SIZE, Take::least, Width::size},
    {CL_DEVICE_SVM_CAPABILITIES, Take::common, Width::ulong},
    {CL_DEVICE_QUEUE_ON_DEVICE_PROPERTIES, Take::common, Width::ulong},
    {CL_DEVICE_QUEUE_ON_DEVICE_PREFERRED_SIZE, Take::least, Width::uint},
    {CL_DEVICE_QUEUE_ON_DEVICE_MAX_SIZE, Take::least, Width::uint},
    {CL_DEVICE_MAX_ON_DEVICE_QUEUES, Take::least, Width::uint},
    {CL_DEVICE_MAX_ON_DEVICE_EVENTS, Take::least, Width::uint},
    {CL_DEVICE_DEVICE_ENQUEUE_CAPABILITIES, Take::common, Width::ulong},
    {CL_DEVICE_MAX_GLOBAL_VARIABLE_SIZE, Take::least, Width::size},
    {CL_DEVICE_GLOBAL_VARIABLE_PREFERRED_TOTAL_SIZE, Take::least, Width::size},
    {CL_DEVICE_MAX_PIPE_ARGS, Take::least, Width::uint},
    {CL_DEVICE_PIPE_MAX_ACTIVE_RESERVATIONS, Take::least, Width::uint},
    {CL_DEVICE_PIPE_MAX_PACKET_SIZE, Take::least, Width::uint},
    {CL_DEVICE_PIPE_SUPPORT, Take::least, Width::uint},
    {CL_DEVICE_MAX_NUM_SUB_GROUPS, Take::least, Width::uint},
    {CL_DEVICE_SUB_GROUP_INDEPENDENT_FORWARD_PROGRESS, Take::least, Width::uint},
    {CL_DEVICE_ATOMIC_MEMORY_CAPABILITIES, Take::common, Width::ulong},
    {CL_DEVICE_ATOMIC_FENCE_CAPABILITIES, Take::common, Width::ulong},
    {CL_DEVICE_NON_UNIFORM_WORK_GROUP_SUPPORT, Take::least, Width::uint},
    {CL_DEVICE_WORK_GROUP_COLLECTIVE_FUNCTIONS_SUPPORT, Take::least, Width::uint},
    {CL_DEVICE_GENERIC_ADDRESS_SPACE_SUPPORT, Take::least, Width::uint},
    {CL_DEVICE_NUMERIC_VERSION, Take::least, Width::uint},
    {CL_DEVICE_PARTITION_MAX_SUB_DEVICES, Take::none, Width::uint},
    {CL_DEVICE_PARTITION_AFFINITY_DOMAIN, Take::none, Width::ulong},
};

size_t bytes_of(Width width) { return width == Width::uint ? 4 : width == Width::sizes ? 24 : 8; }

template <class T> void combine(Take take, T &have, T other) {
    if (take == Take::least) have = std::min(have, other);
    if (take == Take::most) have = std::max(have, other);
    if (take == Take::common) have &= other;
    if (take == Take::none) have = 0;
}

cl_int figure(const Rule &rule, size_t size, void *value, size_t *size_ret) {
    union {
        cl_uint narrow;
        cl_ulong wide[3];
    } have{}, other{};
    size_t bytes = bytes_of(rule.width);
    bool first = true;
    for (auto &one : candidates()) {
        other = {};
        cl_int error = target->clGetDeviceInfo(one.device, rule.what, bytes, &other, nullptr);
        if (error != CL_SUCCESS && first) return error;
        if (first) have = other;
        first = false;
        if (rule.width == Width::uint)
            combine(rule.take, have.narrow, other.narrow);
        else
            for (int i = 0; i < 3; i++) combine(rule.take, have.wide[i], other.wide[i]);
    }
    return answer(&have, bytes, size, value, size_ret);
}

std::string raw(const Candidate &one, cl_device_info what, cl_int *error) {
    size_t size = 0;
    *error = target->clGetDeviceInfo(one.device, what, 0, nullptr, &size);
    std::string data(*error == CL_SUCCESS ? size : 0, '\0');
    if (!data.empty()) *error = target->clGetDeviceInfo(one.device, what, size, data.data(), nullptr);
    return data;
}

std::vector<std::string> words(const std::string &text) {
    std::vector<std::string> found;
    size_t begin = 0;
    while ((begin = text.find_first_not_of(' ', begin)) != std::string::npos) {
        size_t end = std::min(text.find(' ', begin), text.size());
        found.push_back(text.substr(begin, end - begin));
        begin = end;
    }
    return found;
}

/* Extensions whose functions or objects the layer does not know. */
bool is_offered(const std::string &extension) {
    for (const char *part : {"gl_", "egl_", "d3d", "dx9", "va_api", "device_fission", "external_", "semaphore",
                             "command_buffer", "_il_", "unified_shared_memory", "svm", "create_context_abort",
                             "device_partition", "terminate_context", "suggested_local", "initialize_memory"})
        if (extension.find(part) != std::string::npos) return false;
    return true;
}

std::string common_words(std::vector<std::string> have, const std::vector<std::string> &others) {
    std::string text;
    for (auto &word : have) {
        bool everywhere = is_offered(word);
        for (auto &other : others) {
            auto list = words(other);
            everywhere = everywhere && std::find(list.begin(), list.end(), word) != list.end();
        }
        if (everywhere) text += (text.empty() ? "" : " ") + word;
    }
    return text;
}

std::string common_extensions() {
    std::vector<std::string> texts;
    cl_int error;
    for (auto &one : candidates()) texts.push_back(raw(one, CL_DEVICE_EXTENSIONS, &error).c_str());
    return common_words(words(texts[0]), texts);
}

/* Names with versions (cl_name_version): those that all have, each in its least version; for the versions of
 * OpenCL C, whose names are alike, those versions that all have. */
cl_int common_versions(cl_device_info what, size_t size, void *value, size_t *size_ret) {
    std::vector<cl_name_version> have;
    bool first = true, by_version = what == CL_DEVICE_OPENCL_C_ALL_VERSIONS;
    for (auto &one : candidates()) {
        cl_int error;
        std::string data = raw(one, what, &error);
        if (error != CL_SUCCESS) return error;
        std::vector<cl_name_version> other(data.size() / sizeof(cl_name_version));
        memcpy(other.data(), data.data(), other.size() * sizeof(cl_name_version));
        if (first) have = other;
        first = false;
        auto is_missing = [&](cl_name_version &mine) {
            for (auto &their : other)
                if (!strcmp(mine.name, their.name) && (!by_version || mine.version == their.version)) {
                    mine.version = std::min(mine.version, their.version);
                    return !is_offered(mine.name);
                }
            return true;
        };
        have.erase(std::remove_if(have.begin(), have.end(), is_missing), have.end());
    }
    return answer(have.data(), have.size() * sizeof(cl_name_version), size, value, size_ret);
}

/* "OpenCL 3.0 ...", "OpenCL C 1.2 ...": the least of all; the first device's rest. */
cl_int least_version(cl_device_info what, size_t size, void *value, size_t *size_ret) {
    std::string least;
    for (auto &one : candidates()) {
        cl_int error;
        std::string text = raw(one, what, &error).c_str();
        if (error != CL_SUCCESS) return error;
        size_t digits = text.find_first_of("0123456789");
        if (digits == std::string::npos) continue;
        if (least.empty() || text.substr(digits, 3) < least.substr(digits, 3))
            least = least.empty() ? text : text.substr(0, digits + 3) + least.substr(digits + 3);
    }
    return answer(least, size, value, size_ret);
}

} // namespace

cl_int CL_API_CALL layer_clGetDeviceInfo(cl_device_id device, cl_device_info what, size_t size, void *value,
                                         size_t *size_ret) {
    if (!is_ours(device)) return CL_INVALID_DEVICE;
    const Candidate &first = candidates()[0];
    for (auto &rule : RULES)
        if (rule.what == what) return figure(rule, size, value, size_ret);
    switch (what) {
    case CL_DEVICE_PLATFORM: return answer(handle_of(the_platform()), size, value, size_ret);
    case CL_DEVICE_PARENT_DEVICE: return answer(cl_device_id(nullptr), size, value, size_ret);
    case CL_DEVICE_REFERENCE_COUNT: return answer(cl_uint(1), size, value, size_ret);
    case CL_DEVICE_PARTITION_PROPERTIES: return answer(cl_device_partition_property(0), size, value, size_ret);
    case CL_DEVICE_PARTITION_TYPE: return answer(nullptr, 0, size, value, size_ret);
    case CL_DEVICE_EXECUTION_CAPABILITIES:
        return answer(cl_device_exec_capabilities(CL_EXEC_KERNEL), size, value, size_ret);
    case CL_DEVICE_BUILT_IN_KERNELS:
    case CL_DEVICE_IL_VERSION: return answer(std::string(), size, value, size_ret);
    case CL_DEVICE_BUILT_IN_KERNELS_WITH_VERSION:
    case CL_DEVICE_ILS_WITH_VERSION: return answer(nullptr, 0, size, value, size_ret);
    case CL_DEVICE_EXTENSIONS: return answer(common_extensions(), size, value, size_ret);
    case CL_DEVICE_EXTENSIONS_WITH_VERSION:
    case CL_DEVICE_OPENCL_C_ALL_VERSIONS:
    case CL_DEVICE_OPENCL_C_FEATURES: return common_versions(what, size, value, size_ret);
    case CL_DEVICE_VERSION:
    case CL_DEVICE_OPENCL_C_VERSION: return least_version(what, size, value, size_ret);
    case CL_DRIVER_VERSION: {
        /* Caches of compiled programs are named by it: what the layer gives as a binary is for the layer only. */
        cl_int error;
        std::string text = raw(first, what, &error).c_str();
        return error == CL_SUCCESS ? answer(text + " tenbin", size, value, size_ret) : error;
    }
    default: return target->clGetDeviceInfo(first.device, what, size, value, size_ret);
    }
}

cl_int CL_API_CALL layer_clGetPlatformInfo(cl_platform_id platform, cl_platform_info what, size_t size, void *value,
                                           size_t *size_ret) {
    if (!get<Platform>(platform) && (platform || !the_platform())) return CL_INVALID_PLATFORM;
    switch (what) {
    case CL_PLATFORM_EXTENSIONS: return answer(common_extensions(), size, value, size_ret);
    case CL_PLATFORM_EXTENSIONS_WITH_VERSION:
        return common_versions(CL_DEVICE_EXTENSIONS_WITH_VERSION, size, value, size_ret);
    case CL_PLATFORM_NUMERIC_VERSION:
        return layer_clGetDeviceInfo(handle_of(the_device()), CL_DEVICE_NUMERIC_VERSION, size, value, size_ret);
    case CL_PLATFORM_VERSION: {
        char text[256] = "", least[256] = "";
        target->clGetPlatformInfo(candidates()[0].platform, what, sizeof(text) - 1, text, nullptr);
        layer_clGetDeviceInfo(handle_of(the_device()), CL_DEVICE_VERSION, sizeof(least) - 1, least, nullptr);
        if (strlen(least) >= 10 && strlen(text) >= 10) memcpy(text, least, 10); /* "OpenCL 3.0" */
        return answer(std::string(text), size, value, size_ret);
    }
    default: return target->clGetPlatformInfo(candidates()[0].platform, what, size, value, size_ret);
    }
}

} // namespace tenbin
