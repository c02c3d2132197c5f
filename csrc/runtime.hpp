// Threads, the path of the CPU, memory for weights: what every operation needs beside its operands.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

#include "dispatch.hpp"
#include "thread_pool.hpp"
#include "weight_memory.hpp"

namespace everbatch {

constexpr std::size_t div_ceil(std::size_t size, std::size_t step) {
  return (size + step - 1) / step;
}

constexpr std::size_t round_up(std::size_t size, std::size_t step) {
  return div_ceil(size, step) * step;
}

// What may be left out, to see what it is good for. No result depends on it.
struct Optimisations {
  bool has_huge_pages = true;  // WeightMemory
  bool has_kv_ahead = true;    // KvAhead
  bool has_own_pieces = true;  // PackedMatrix::run_pieces
};

class Runtime {
 public:
  Runtime(int num_threads, std::string path, std::vector<int> cpus = {},
          const Optimisations& wanted = {})
      : kernels(kernels_of(path)),
        path_name(std::move(path)),
        optimisations(wanted),
        pool(num_threads, std::move(cpus)),
        weights(wanted.has_huge_pages) {}

  // Call part(Range, thread) for pieces of [0, size), each of `step` or fewer.
  template <typename Part>
  void run_in_parts(std::size_t size, std::size_t step, Part&& part) {
    pool.run(div_ceil(size, step), [&](std::size_t index, int thread) {
      part(Range{index * step, std::min(size, (index + 1) * step)}, thread);
    });
  }

  const PathKernels& kernels;
  const std::string path_name;
  const Optimisations optimisations;
  ThreadPool pool;
  WeightMemory weights;
};

}  // namespace everbatch
