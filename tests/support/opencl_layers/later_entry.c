/* A layer that loads the layer LAYER_ABOVE, and lets it go, as Khronos' loader does since 2026: by an entry of its own,
 * which older loaders do not know. */
#include <CL/cl_icd.h>
#include <CL/cl_layer.h>
#include <dlfcn.h>
#include <stdlib.h>

typedef cl_int(CL_API_CALL *Init)(cl_uint, const cl_icd_dispatch *, cl_uint *, const cl_icd_dispatch **,
                                  const cl_ulong *);
typedef cl_int(CL_API_CALL *Deinit)(void);
static Deinit deinit;

cl_int CL_API_CALL clGetLayerInfo(cl_layer_info name, size_t size, void *value, size_t *size_ret) {
    if (name != CL_LAYER_API_VERSION) return CL_INVALID_VALUE;
    if (value && size >= sizeof(cl_layer_api_version)) *(cl_layer_api_version *)value = CL_LAYER_API_VERSION_100;
    if (size_ret) *size_ret = sizeof(cl_layer_api_version);
    return CL_SUCCESS;
}

cl_int CL_API_CALL clInitLayer(cl_uint n, const cl_icd_dispatch *dispatch, cl_uint *n_ret,
                               const cl_icd_dispatch **layer) {
    void *library = dlopen(getenv("LAYER_ABOVE"), RTLD_NOW | RTLD_LOCAL);
    Init init = library ? (Init)dlsym(library, "clInitLayerWithProperties") : NULL;
    if (!init) return CL_INVALID_OPERATION;
    deinit = (Deinit)dlsym(library, "clDeinitLayer");
    return init(n, dispatch, n_ret, layer, NULL);
}

__attribute__((destructor)) static void let_go(void) {
    if (deinit && deinit() != CL_SUCCESS) abort();
}
