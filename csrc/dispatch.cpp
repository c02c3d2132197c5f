#include "dispatch.hpp"

#include <stdexcept>

namespace everbatch {

#if defined(EVERBATCH_HAS_AVX512)
namespace avx512 {
extern const PathKernels kKernels;
}
#endif
#if defined(EVERBATCH_HAS_AVX2)
namespace avx2 {
extern const PathKernels kKernels;
}
#endif
namespace portable {
extern const PathKernels kKernels;
}

namespace {

struct Path {
  const char* name;
  const PathKernels& kernels;
};

// The compiler's run-time library asks cpuid, and whether the system saves the registers.
std::vector<Path> paths_that_run_here() {
  std::vector<Path> paths;
#if defined(EVERBATCH_HAS_AVX512)
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512bf16")) {
    paths.push_back({"avx512", avx512::kKernels});
  }
#endif
#if defined(EVERBATCH_HAS_AVX2)
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
    paths.push_back({"avx2", avx2::kKernels});
  }
#endif
  paths.push_back({"portable", portable::kKernels});
  return paths;
}

}  // namespace

std::vector<std::string> available_paths() {
  std::vector<std::string> names;
  for (const Path& path : paths_that_run_here()) names.emplace_back(path.name);
  return names;
}

const PathKernels& kernels_of(std::string_view name) {
  std::string known;
  for (const Path& path : paths_that_run_here()) {
    if (name == path.name) return path.kernels;
    known += (known.empty() ? "" : ", ") + std::string(path.name);
  }
  throw std::invalid_argument("no path \"" + std::string(name) + "\" on this CPU: it runs " + known);
}

}  // namespace everbatch
