// Which paths this build has and this CPU can run.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "kernels.hpp"

namespace everbatch {

// Names of the paths that run here, fastest first: "avx512" (needs AVX-512 BF16), "avx2" (AVX2 and
// FMA), "portable".
std::vector<std::string> available_paths();

// The functions of one of them; std::invalid_argument for any other name.
const PathKernels& kernels_of(std::string_view path);

}  // namespace everbatch
