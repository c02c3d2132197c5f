// The memory of one thread that computes attention; included by attention.cpp only.
#pragma once

#include "kernels.hpp"
#include "path_math.hpp"

namespace everbatch::EVERBATCH_PATH {
namespace {

constexpr std::size_t round_up(std::size_t size, std::size_t step) {
  return (size + step - 1) / step * step;
}

// One thread's memory. R rows: tokens times the query heads that share a key-value head.
struct Scratch {
  Bf16* zeros;         // [D], in place of positions that nobody sees
  Bf16* key_panels;    // [2][D / 2][32][2]
  Bf16* value_panels;  // [D / 32][32][32][2]
  float* scores;       // [R, 64]
  Bf16* weights;       // [R, 64]
  std::size_t value_columns;
  // Of one key-value head of the task.
  Bf16* queries;     // [R, D]
  float* sums;       // [R, value_columns]
  float* largest;    // [R]
  float* totals;     // [R, lanes]
  std::byte* known;  // of the segments so far
};

// What some segments of a context give its rows.
struct Known {
  float* sums;     // [R, value_columns]
  float* largest;  // [R]
  float* totals;   // [R]
};

class Carver {
 public:
  explicit Carver(std::byte* memory) : memory_(memory) {}

  template <typename Element>
  Element* take(std::size_t count) {
    std::byte* taken = memory_ + used_;
    used_ += round_up(count * sizeof(Element), 64);
    return reinterpret_cast<Element*>(taken);
  }
  std::size_t used() const { return used_; }

 private:
  std::byte* memory_;
  std::size_t used_ = 0;
};

Known carve_known(const AttentionCall& call, std::size_t num_tokens, Carver& carver) {
  const std::size_t num_rows = num_tokens * (call.num_heads / call.num_kv_heads);
  Known known;
  known.sums = carver.take<float>(num_rows * round_up(call.head_dim, kPanelColumns));
  known.largest = carver.take<float>(num_rows);
  known.totals = carver.take<float>(num_rows);
  return known;
}

void carve_head(const AttentionCall& call, std::size_t num_tokens, Carver& carver,
                Scratch& scratch) {
  const std::size_t num_rows = num_tokens * (call.num_heads / call.num_kv_heads);
  scratch.queries = carver.take<Bf16>(num_rows * call.head_dim);
  scratch.sums = carver.take<float>(num_rows * scratch.value_columns);
  scratch.largest = carver.take<float>(num_rows);
  scratch.totals = carver.take<float>(num_rows * kLanes);
  Carver of_known(nullptr);
  carve_known(call, num_tokens, of_known);
  scratch.known = carver.take<std::byte>(of_known.used());
}

// The memory of one of the heads of a task; what they share is the same for all.
Scratch carve(const AttentionCall& call, std::size_t num_tokens, std::size_t head,
              Carver& carver) {
  const std::size_t num_rows = num_tokens * (call.num_heads / call.num_kv_heads);
  const std::size_t head_dim = call.head_dim;
  Scratch scratch;
  scratch.value_columns = round_up(head_dim, kPanelColumns);
  scratch.zeros = carver.take<Bf16>(head_dim);
  scratch.key_panels = carver.take<Bf16>(kTilePositions * head_dim);
  scratch.value_panels = carver.take<Bf16>(kTilePositions * scratch.value_columns);
  scratch.scores = carver.take<float>(num_rows * kTilePositions);
  scratch.weights = carver.take<Bf16>(num_rows * kTilePositions);
  for (std::size_t i = 0; i <= head; ++i) carve_head(call, num_tokens, carver, scratch);
  return scratch;
}

}  // namespace
}  // namespace everbatch::EVERBATCH_PATH
