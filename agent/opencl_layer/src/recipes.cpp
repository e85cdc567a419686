/* How programs came to be, as text that replaces their binaries, and how they are made anew. */
#include "recipes.h"

namespace tenbin {

namespace {

constexpr char MARK[] = "tenbin-program-1\n"; /* begins what a program is given as its binary */

void put(std::string &text, const std::string &part) {
    text += std::to_string(part.size());
    text += ':';
    text += part;
}

void put_recipe(std::string &text, const Recipe &recipe) {
    put(text, std::to_string(recipe.how));
    put(text, recipe.text);
    put(text, recipe.options);
    put(text, std::to_string(recipe.headers.size()));
    for (auto &[name, header] : recipe.headers) {
        put(text, name);
        put_recipe(text, *header);
    }
    put(text, std::to_string(recipe.inputs.size()));
    for (auto &input : recipe.inputs) put_recipe(text, *input);
}

struct Reader {
    const std::string &text;
    size_t at;
    bool good = true;

    std::string next() {
        size_t colon = text.find(':', at);
        size_t size = 0;
        good = good && colon != std::string::npos && colon - at < 12 && colon > at;
        for (size_t i = at; good && i < colon; i++) {
            good = text[i] >= '0' && text[i] <= '9';
            size = size * 10 + size_t(text[i] - '0');
        }
        good = good && size <= text.size() - colon - 1;
        if (!good) return "";
        at = colon + 1 + size;
        return text.substr(colon + 1, size);
    }
    size_t number() {
        std::string digits = next();
        good = good && !digits.empty() && digits.size() < 5 &&
               digits.find_first_not_of("0123456789") == std::string::npos;
        size_t value = 0;
        for (char c : digits) value = value * 10 + size_t(c - '0');
        return value;
    }
    RecipePointer recipe(int depth) {
        auto made = std::make_shared<Recipe>();
        size_t how = number();
        good = good && depth < 8 && how <= Recipe::linked;
        if (!good) return nullptr;
        made->how = Recipe::How(how);
        made->text = next();
        made->options = next();
        for (size_t n = number(); good && n-- > 0;) {
            std::string name = next();
            made->headers.emplace_back(name, recipe(depth + 1));
        }
        for (size_t n = number(); good && n-- > 0;) made->inputs.push_back(recipe(depth + 1));
        return good ? made : nullptr;
    }
};

struct Programs {
    std::vector<cl_program> list;
    ~Programs() {
        for (cl_program one : list)
            if (one) target->clReleaseProgram(one);
    }
};

cl_int compile(const Recipe &recipe, cl_program program, cl_context context, cl_device_id device) {
    Programs headers;
    std::vector<const char *> names;
    for (auto &[name, header] : recipe.headers) {
        cl_int error;
        headers.list.push_back(make_program(*source_of(*header), context, device, &error));
        if (error != CL_SUCCESS) return error;
        names.push_back(name.c_str());
    }
    return target->clCompileProgram(program, 1, &device, driver_options(recipe.options).c_str(),
                                    cl_uint(names.size()), names.empty() ? nullptr : headers.list.data(),
                                    names.empty() ? nullptr : names.data(), nullptr, nullptr);
}

cl_program link(const Recipe &recipe, cl_context context, cl_device_id device, cl_int *error) {
    Programs inputs;
    for (auto &input : recipe.inputs) {
        inputs.list.push_back(make_program(*input, context, device, error));
        if (*error != CL_SUCCESS) return nullptr;
    }
    cl_program made = target->clLinkProgram(context, 1, &device, recipe.options.c_str(), cl_uint(inputs.list.size()),
                                            inputs.list.data(), nullptr, nullptr, error);
    if (*error != CL_SUCCESS && made) target->clReleaseProgram(made);
    return *error == CL_SUCCESS ? made : nullptr;
}

} // namespace

std::string driver_options(const std::string &options) {
    /* Which arguments are buffers is asked of the driver, and PoCL knows it only then. */
    return options.find("-cl-kernel-arg-info") == std::string::npos ? options + " -cl-kernel-arg-info" : options;
}

std::string to_binary(const Recipe &recipe) {
    std::string text = MARK;
    put_recipe(text, recipe);
    return text;
}

RecipePointer from_binary(const std::string &binary) {
    constexpr size_t mark = sizeof(MARK) - 1;
    if (binary.compare(0, mark, MARK) != 0) return nullptr;
    Reader reader{binary, mark};
    return reader.recipe(0);
}

RecipePointer source_of(const Recipe &recipe) {
    auto source = std::make_shared<Recipe>();
    source->how = Recipe::source;
    source->text = recipe.text;
    return source;
}

cl_program make_program(const Recipe &recipe, cl_context context, cl_device_id device, cl_int *error) {
    if (recipe.how == Recipe::linked) return link(recipe, context, device, error);
    const char *text = recipe.text.data();
    size_t size = recipe.text.size();
    cl_program made = target->clCreateProgramWithSource(context, 1, &text, &size, error);
    if (*error != CL_SUCCESS) return nullptr;
    if (recipe.how == Recipe::built)
        *error = target->clBuildProgram(made, 1, &device, driver_options(recipe.options).c_str(), nullptr, nullptr);
    if (recipe.how == Recipe::compiled) *error = compile(recipe, made, context, device);
    if (recipe.how != Recipe::source) leave_first();
    if (*error == CL_SUCCESS) return made;
    target->clReleaseProgram(made);
    return nullptr;
}

} // namespace tenbin
