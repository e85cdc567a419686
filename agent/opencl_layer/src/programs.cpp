/* Programs: created, built, compiled, linked; their binaries are their sources. */
#include "recipes.h"

namespace tenbin {

using ProgramNotify = void(CL_CALLBACK *)(cl_program, void *);

constexpr char VARIABLES[] = "variables of a program in device memory";

static cl_program finish_program(Context *context, cl_program real, RecipePointer recipe, cl_int code,
                                 cl_int *error) {
    if (error) *error = code;
    if (!real) return nullptr;
    auto program = new Program;
    program->context = Ref<Context>(context);
    program->recipe = std::move(recipe);
    return wrap(program, real, error);
}

cl_program CL_API_CALL layer_clCreateProgramWithSource(cl_context context, cl_uint n, const char **texts,
                                                       const size_t *sizes, cl_int *error) {
    Inside inside;
    Context *own = get<Context>(context);
    if (!own) return refuse<cl_program>(error, CL_INVALID_CONTEXT);
    if (!n || !texts) return refuse<cl_program>(error, CL_INVALID_VALUE);
    auto recipe = std::make_shared<Recipe>();
    recipe->how = Recipe::source;
    for (cl_uint i = 0; i < n; i++) {
        if (!texts[i]) return refuse<cl_program>(error, CL_INVALID_VALUE);
        recipe->text.append(texts[i], sizes && sizes[i] ? sizes[i] : strlen(texts[i]));
    }
    cl_int code;
    cl_program real = make_program(*recipe, real_of(own), real_of(the_device()), &code);
    return finish_program(own, real, recipe, code, error);
}

cl_program CL_API_CALL layer_clCreateProgramWithBinary(cl_context context, cl_uint n, const cl_device_id *devices,
                                                       const size_t *sizes, const unsigned char **binaries,
                                                       cl_int *status, cl_int *error) {
    Inside inside;
    Context *own = get<Context>(context);
    if (!own) return refuse<cl_program>(error, CL_INVALID_CONTEXT);
    if (n != 1 || !devices || !sizes || !binaries) return refuse<cl_program>(error, CL_INVALID_VALUE);
    if (!is_ours(devices[0])) return refuse<cl_program>(error, CL_INVALID_DEVICE);
    if (!sizes[0] || !binaries[0]) {
        if (status) *status = CL_INVALID_VALUE;
        return refuse<cl_program>(error, CL_INVALID_VALUE);
    }
    RecipePointer recipe = from_binary(std::string(reinterpret_cast<const char *>(binaries[0]), sizes[0]));
    cl_device_id device = real_of(the_device());
    cl_int code;
    cl_program real;
    if (recipe) {
        Busy busy(inside);
        real = make_program(*recipe, real_of(own), device, &code);
        if (code == CL_BUILD_PROGRAM_FAILURE) code = CL_INVALID_BINARY;
    } else {
        real = target->clCreateProgramWithBinary(real_of(own), 1, &device, sizes, binaries, status, &code);
        if (code == CL_SUCCESS) not_movable("a program from a binary of a driver");
    }
    if (status) *status = code;
    cl_program made = finish_program(own, code == CL_SUCCESS ? real : nullptr, recipe, code, error);
    if (made && recipe) get<Program>(made)->from_binary = true;
    if (made && recipe && may_have_variables(*recipe)) not_movable(VARIABLES);
    return made;
}

cl_program CL_API_CALL layer_clCreateProgramWithIL(cl_context context, const void *text, size_t size,
                                                   cl_int *error) {
    Inside inside;
    Context *own = get<Context>(context);
    if (!own) return refuse<cl_program>(error, CL_INVALID_CONTEXT);
    if (!target->clCreateProgramWithIL) return refuse<cl_program>(error, CL_INVALID_OPERATION);
    cl_int code;
    cl_program real = target->clCreateProgramWithIL(real_of(own), text, size, &code);
    if (code == CL_SUCCESS) not_movable("a program in an intermediate language");
    return finish_program(own, code == CL_SUCCESS ? real : nullptr, nullptr, code, error);
}

cl_program CL_API_CALL layer_clCreateProgramWithBuiltInKernels(cl_context context, cl_uint n,
                                                               const cl_device_id *devices, const char *names,
                                                               cl_int *error) {
    Inside inside;
    Context *own = get<Context>(context);
    if (!own) return refuse<cl_program>(error, CL_INVALID_CONTEXT);
    if (n != 1 || !devices || !is_ours(devices[0])) return refuse<cl_program>(error, CL_INVALID_VALUE);
    cl_device_id device = real_of(the_device());
    cl_int code;
    cl_program real = target->clCreateProgramWithBuiltInKernels(real_of(own), 1, &device, names, &code);
    if (code == CL_SUCCESS) not_movable("kernels built into the driver");
    return finish_program(own, code == CL_SUCCESS ? real : nullptr, nullptr, code, error);
}

static std::string build_log(cl_program real, cl_device_id device) {
    size_t size = 0;
    target->clGetProgramBuildInfo(real, device, CL_PROGRAM_BUILD_LOG, 0, nullptr, &size);
    std::string log(size, '\0');
    if (size) target->clGetProgramBuildInfo(real, device, CL_PROGRAM_BUILD_LOG, size, log.data(), nullptr);
    return log.c_str();
}

/* What a build has left, for the time when the program lies on a device on which it was never built. */
static void note_build(Program *program, cl_program real, std::shared_ptr<Recipe> recipe, cl_int error) {
    cl_device_id device = real_of(the_device());
    target->clGetProgramBuildInfo(real, device, CL_PROGRAM_BUILD_STATUS, sizeof(program->status), &program->status,
                                  nullptr);
    program->log = build_log(real, device);
    leave_first();
    if (error != CL_SUCCESS || !recipe) return;
    size_t bytes = 0;
    target->clGetProgramBuildInfo(real, device, CL_PROGRAM_BUILD_GLOBAL_VARIABLE_TOTAL_SIZE, sizeof(bytes), &bytes,
                                  nullptr);
    if (bytes || may_have_variables(*recipe)) not_movable(VARIABLES);
    program->recipe = std::move(recipe);
}

static cl_int check_devices(cl_uint n, const cl_device_id *devices) {
    if ((n == 0) != (devices == nullptr)) return CL_INVALID_VALUE;
    for (cl_uint i = 0; i < n; i++)
        if (!is_ours(devices[i])) return CL_INVALID_DEVICE;
    return CL_SUCCESS;
}

cl_int CL_API_CALL layer_clBuildProgram(cl_program program, cl_uint n, const cl_device_id *devices,
                                        const char *options, ProgramNotify notify, void *data) {
    cl_int error = CL_SUCCESS;
    {
        Inside inside;
        Program *own = get<Program>(program);
        if (!own) return CL_INVALID_PROGRAM;
        if (!notify && data) return CL_INVALID_VALUE;
        if (cl_int bad = check_devices(n, devices)) return bad;
        if (!own->from_binary) { /* else it was built as it was made */
            cl_device_id device = real_of(the_device());
            auto recipe = own->recipe ? std::make_shared<Recipe>(*own->recipe) : nullptr;
            if (recipe) {
                recipe->how = Recipe::built;
                recipe->options = options ? options : "";
                recipe->headers.clear();
            }
            std::string text = driver_options(options ? options : "");
            {
                Busy busy(inside);
                error = target->clBuildProgram(real_of(own), 1, &device, text.c_str(), nullptr, nullptr);
            }
            note_build(own, real_of(own), recipe, error);
        }
    }
    if (notify) notify(program, data);
    return error;
}

cl_int CL_API_CALL layer_clCompileProgram(cl_program program, cl_uint n, const cl_device_id *devices,
                                          const char *options, cl_uint headers, const cl_program *header,
                                          const char **names, ProgramNotify notify, void *data) {
    cl_int error = CL_SUCCESS;
    {
        Inside inside;
        Program *own = get<Program>(program);
        if (!own) return CL_INVALID_PROGRAM;
        if ((!notify && data) || (headers == 0) != (header == nullptr) || (headers == 0) != (names == nullptr))
            return CL_INVALID_VALUE;
        if (cl_int bad = check_devices(n, devices)) return bad;
        auto recipe = own->recipe ? std::make_shared<Recipe>(*own->recipe) : nullptr;
        std::vector<cl_program> reals;
        if (recipe) {
            recipe->how = Recipe::compiled;
            recipe->options = options ? options : "";
            recipe->headers.clear();
        }
        for (cl_uint i = 0; i < headers; i++) {
            Program *one = get<Program>(header[i]);
            if (!one || !one->recipe) return CL_INVALID_PROGRAM;
            reals.push_back(real_of(one));
            if (recipe) recipe->headers.emplace_back(names[i], one->recipe);
        }
        cl_device_id device = real_of(the_device());
        std::string text = driver_options(options ? options : "");
        {
            Busy busy(inside);
            error = target->clCompileProgram(real_of(own), 1, &device, text.c_str(), headers,
                                             headers ? reals.data() : nullptr, names, nullptr, nullptr);
        }
        note_build(own, real_of(own), recipe, error);
    }
    if (notify) notify(program, data);
    return error;
}

cl_program CL_API_CALL layer_clLinkProgram(cl_context context, cl_uint n, const cl_device_id *devices,
                                           const char *options, cl_uint inputs, const cl_program *input,
                                           ProgramNotify notify, void *data, cl_int *error) {
    cl_program made = nullptr;
    {
        Inside inside;
        Context *own = get<Context>(context);
        if (!own) return refuse<cl_program>(error, CL_INVALID_CONTEXT);
        if ((!notify && data) || !inputs || !input) return refuse<cl_program>(error, CL_INVALID_VALUE);
        if (cl_int bad = check_devices(n, devices)) return refuse<cl_program>(error, bad);
        auto recipe = std::make_shared<Recipe>();
        recipe->how = Recipe::linked;
        recipe->options = options ? options : "";
        std::vector<cl_program> reals;
        for (cl_uint i = 0; i < inputs; i++) {
            Program *one = get<Program>(input[i]);
            if (!one) return refuse<cl_program>(error, CL_INVALID_PROGRAM);
            reals.push_back(real_of(one));
            if (one->recipe)
                recipe->inputs.push_back(one->recipe);
            else
                not_movable("a program linked with one that is not movable");
        }
        cl_device_id device = real_of(the_device());
        cl_int code;
        cl_program real;
        {
            Busy busy(inside);
            real = target->clLinkProgram(real_of(own), 1, &device, options, inputs, reals.data(), nullptr, nullptr,
                                         &code);
        }
        /* A program that could not be linked is given out too, for its log; elsewhere it is an empty one. */
        auto empty = std::make_shared<Recipe>(Recipe{Recipe::source, " ", recipe->options, {}, {}});
        made = finish_program(own, real, empty, code, error);
        if (made) note_build(get<Program>(made), real, recipe, code);
    }
    if (notify) notify(made, data);
    return made;
}

/* It is for clean-up kernels, which programs from source have not. */
cl_int CL_API_CALL layer_clSetProgramReleaseCallback(cl_program program, ProgramNotify, void *) {
    return get<Program>(program) ? CL_INVALID_OPERATION : CL_INVALID_PROGRAM;
}

static cl_int give_binary(const Program &program, size_t size, void *value, size_t *size_ret) {
    std::string binary = to_binary(*program.recipe);
    if (value && size < sizeof(void *)) return CL_INVALID_VALUE;
    if (size_ret) *size_ret = sizeof(void *);
    unsigned char *place = value ? *static_cast<unsigned char **>(value) : nullptr;
    if (place) memcpy(place, binary.data(), binary.size());
    return CL_SUCCESS;
}

cl_int CL_API_CALL layer_clGetProgramInfo(cl_program program, cl_program_info what, size_t size, void *value,
                                          size_t *size_ret) {
    Inside inside;
    Program *own = get<Program>(program);
    if (!own) return CL_INVALID_PROGRAM;
    bool has_binary = own->recipe && own->recipe->how != Recipe::source;
    switch (what) {
    case CL_PROGRAM_REFERENCE_COUNT: return answer(cl_uint(own->slot->retained.load()), size, value, size_ret);
    case CL_PROGRAM_CONTEXT: return answer(handle_of(own->context.get()), size, value, size_ret);
    case CL_PROGRAM_NUM_DEVICES: return answer(cl_uint(1), size, value, size_ret);
    case CL_PROGRAM_DEVICES: return answer(handle_of(the_device()), size, value, size_ret);
    case CL_PROGRAM_SOURCE:
        if (!own->recipe || own->from_binary) break;
        return answer(own->recipe->text, size, value, size_ret);
    case CL_PROGRAM_BINARY_SIZES:
        if (!own->recipe) break;
        return answer(has_binary ? to_binary(*own->recipe).size() : size_t(0), size, value, size_ret);
    case CL_PROGRAM_BINARIES:
        if (has_binary) return give_binary(*own, size, value, size_ret);
        break;
    default: break;
    }
    return target->clGetProgramInfo(real_of(own), what, size, value, size_ret);
}

cl_int CL_API_CALL layer_clGetProgramBuildInfo(cl_program program, cl_device_id device, cl_program_build_info what,
                                               size_t size, void *value, size_t *size_ret) {
    Inside inside;
    Program *own = get<Program>(program);
    if (!own) return CL_INVALID_PROGRAM;
    if (!is_ours(device)) return CL_INVALID_DEVICE;
    switch (what) {
    case CL_PROGRAM_BUILD_OPTIONS:
        if (own->recipe) return answer(own->recipe->options, size, value, size_ret);
        break;
    case CL_PROGRAM_BUILD_STATUS:
        if (own->status == CL_BUILD_NONE || own->from_binary) break; /* or one that is being built */
        return answer(own->status, size, value, size_ret);
    case CL_PROGRAM_BUILD_LOG:
        if (own->status == CL_BUILD_NONE) break;
        return answer(own->log, size, value, size_ret);
    default: break;
    }
    return target->clGetProgramBuildInfo(real_of(own), real_of(the_device()), what, size, value, size_ret);
}

} // namespace tenbin
