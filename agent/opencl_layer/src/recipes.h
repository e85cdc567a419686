/* How programs came to be, as text that replaces their binaries, and how they are made anew. */
#pragma once
#include "objects.h"

namespace tenbin {

std::string driver_options(const std::string &options);
std::string to_binary(const Recipe &recipe);
bool may_have_variables(const Recipe &recipe); /* in device memory */
RecipePointer from_binary(const std::string &binary); /* none: not made by this layer */

} // namespace tenbin
