/* Entry of the loader: the table that stands between the program and the drivers. */
#include <CL/cl_layer.h>
#include <dlfcn.h>

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "objects.h"

namespace tenbin {

void fill_table(cl_icd_dispatch &table); /* generated */

/* What the driver would give here would bypass the layer. */
void *CL_API_CALL layer_clGetExtensionFunctionAddress(const char *) { return nullptr; }
void *CL_API_CALL layer_clGetExtensionFunctionAddressForPlatform(cl_platform_id, const char *) { return nullptr; }

/* Some programs unload their loader (hashcat), and threads of the layer call it later. */
static void keep_mapped(const void *code) {
    Dl_info where;
    if (dladdr(code, &where) && where.dli_fname) dlopen(where.dli_fname, RTLD_LAZY | RTLD_NOLOAD | RTLD_NODELETE);
}

static cl_int init(cl_uint n, const cl_icd_dispatch *dispatch, cl_uint *n_ret, const cl_icd_dispatch **layer,
                   const void *loader) {
    static cl_icd_dispatch table, below;
    constexpr cl_uint ENTRIES = sizeof(table) / sizeof(void *);
    constexpr cl_uint LEAST = offsetof(cl_icd_dispatch, clSetContextDestructorCallback) / sizeof(void *) + 1; /* 3.0 */
    if (!dispatch || !n_ret || !layer || n < LEAST) return CL_INVALID_VALUE;
    if (target) return CL_INVALID_OPERATION; /* named twice: it would call itself */
    for (const void *code : {loader, reinterpret_cast<const void *>(fill_table)}) keep_mapped(code);
    /* A loader may be older than the headers, and its table shorter: what it lacks stays null. */
    memcpy(&below, dispatch, std::min(n, ENTRIES) * sizeof(void *));
    target = &below;
    fill_table(table);
    Inside first; /* of a thread that may call exit() and nothing more of OpenCL */
    *n_ret = std::min(n, ENTRIES);
    *layer = &table;
    return CL_SUCCESS;
}

} // namespace tenbin

#define EXPORT extern "C" __attribute__((visibility("default")))

EXPORT cl_int CL_API_CALL clGetLayerInfo(cl_layer_info what, size_t size, void *value, size_t *size_ret) {
    switch (what) {
    case CL_LAYER_API_VERSION:
        return tenbin::answer(cl_layer_api_version(CL_LAYER_API_VERSION_100), size, value, size_ret);
    case CL_LAYER_NAME: return tenbin::answer(std::string("tenbin"), size, value, size_ret);
    default: return CL_INVALID_VALUE;
    }
}

EXPORT cl_int CL_API_CALL clInitLayer(cl_uint n, const cl_icd_dispatch *dispatch, cl_uint *n_ret,
                                      const cl_icd_dispatch **layer) {
    return tenbin::init(n, dispatch, n_ret, layer, __builtin_return_address(0));
}

/* Loaders of Khronos' since 2025 ask for these two in place of the one above. */
EXPORT cl_int CL_API_CALL clInitLayerWithProperties(cl_uint n, const cl_icd_dispatch *dispatch, cl_uint *n_ret,
                                                    const cl_icd_dispatch **layer, const cl_properties *) {
    return tenbin::init(n, dispatch, n_ret, layer, __builtin_return_address(0));
}

EXPORT cl_int CL_API_CALL clDeinitLayer() {
    tenbin::take_leave(); /* drivers are unloaded next */
    return CL_SUCCESS;
}
