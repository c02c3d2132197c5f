// What attention of a layer will read, asked for while the products before it compute.
//
// Products of many rows wait for arithmetic, attention of many contexts for memory: asked for early,
// keys and values come while the former compute, and lie in the last cache when the latter wants
// them. Each thread asks for the rows that it will begin with, as two CPUs may have a last cache each.
// Nothing but the time depends on it.
#pragma once

#include <cstddef>
#include <vector>

#include "kernels.hpp"
#include "runtime.hpp"

namespace everbatch {

struct Batch;
struct KvView;

class KvAhead {
 public:
  // slot_values: how many a slot holds of a layer's keys, and as many of its values.
  // Nothing is asked for where the batch is small, as its products wait for memory themselves, or
  // where the runtime is without this.
  KvAhead(const Runtime& runtime, const Batch& batch, const KvView& kv, std::size_t slot_values);

  // From now on, ask for `layer`, before whose attention products of so much work follow the next
  // one. As late as they leave time for it: weights pass through the same cache.
  void aim(std::size_t layer, std::size_t work_after);

  // What a thread asks for during so much work on a product. Only this thread's state is changed.
  BlocksAhead take(int thread, std::size_t work);

 private:
  struct alignas(kLineBytes) Thread {
    std::vector<BlockLines> blocks;  // in the order of attention
    std::size_t num_lines = 0;       // of keys and of values
    std::size_t next = 0;
    std::size_t num_asked = 0;
  };

  void add_row(const Batch& batch, const KvView& kv, std::size_t row, std::size_t most_lines,
               Thread& thread) const;

  const std::byte* keys_;
  const std::byte* values_;
  std::size_t slot_bytes_;
  std::size_t layer_bytes_;
  std::size_t layer_ = 0;
  std::size_t lines_after_ = 0;  // how many a thread can ask for after the next product
  std::vector<Thread> threads_;
};

}  // namespace everbatch
