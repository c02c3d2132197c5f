// Threads and the path of the CPU: what every operation needs beside its operands.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

#include "dispatch.hpp"
#include "thread_pool.hpp"

namespace everbatch {

constexpr std::size_t div_ceil(std::size_t size, std::size_t step) {
  return (size + step - 1) / step;
}

constexpr std::size_t round_up(std::size_t size, std::size_t step) {
  return div_ceil(size, step) * step;
}

class Runtime {
 public:
  Runtime(int num_threads, std::string path, std::vector<int> cpus = {})
      : kernels(kernels_of(path)),
        path_name(std::move(path)),
        pool(num_threads, std::move(cpus)) {}

  // Call part(Range, thread) for pieces of [0, size), each of `step` or fewer.
  template <typename Part>
  void run_in_parts(std::size_t size, std::size_t step, Part&& part) {
    pool.run(div_ceil(size, step), [&](std::size_t index, int thread) {
      part(Range{index * step, std::min(size, (index + 1) * step)}, thread);
    });
  }

  const PathKernels& kernels;
  const std::string path_name;
  ThreadPool pool;
};

}  // namespace everbatch
