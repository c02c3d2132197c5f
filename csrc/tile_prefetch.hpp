// Asking for the next tile's keys and values while one is computed; included by attention.cpp only.
//
// The blocks of a context lie anywhere, so no CPU foresees them, and a tile is small: without this
// two thirds of a decode's attention are spent fetching (SmolLM2, 32 contexts of 160 positions).
#pragma once

#include "kernels.hpp"
#include "lines_ahead.hpp"
#include "path_math.hpp"

namespace everbatch::EVERBATCH_PATH {
namespace {

constexpr std::size_t kLineValues = kLineBytes / sizeof(Bf16);

// Call visit(position in the tile, how many follow in one block, offset of the first one's heads).
template <typename Visit>
inline void visit_blocks(const AttentionCall& call, const AttentionTask& task, std::size_t first,
                         std::size_t count, Visit visit) {
  const std::size_t stride = call.num_kv_heads * call.head_dim;
  std::size_t block = first / call.block_size, in_block = first % call.block_size;
  for (std::size_t i = 0; i < count; ++block, in_block = 0) {
    const std::size_t here = smaller(call.block_size - in_block, count - i);
    const auto id = static_cast<std::size_t>(task.block_table[block]);
    const std::size_t slot = id * call.block_size + in_block;
    visit(i, here, slot * stride + task.kv_head * call.head_dim);
    i += here;
  }
}

// Ask for what positions [first, last) of the context hold of the task's heads.
inline void fetch(const AttentionCall& call, const AttentionTask& task, std::size_t first,
                  std::size_t last) {
  const std::size_t stride = call.num_kv_heads * call.head_dim;
  const std::size_t own = task.num_kv_heads * call.head_dim;
  visit_blocks(call, task, first, last - first,
               [&](std::size_t, std::size_t count, std::size_t offset) {
                 const Bf16* const starts[] = {call.keys + offset, call.values + offset};
                 for (const Bf16* from : starts) {
                   for (std::size_t i = 0; i < count; ++i, from += stride) {
                     for (std::size_t value = 0; value < own; value += kLineValues) {
                       ask_for(reinterpret_cast<const std::byte*>(from + value));
                     }
                   }
                 }
               });
}

// What comes after a tile. It is asked for in small parts, spread over the work on the tile: a CPU
// has some dozens of requests under way, and waits where there are more.
class Ahead {
 public:
  // Positions [first, last) of a task, or nothing; `some` is called at most so often for a tile.
  Ahead(const AttentionCall& call, const AttentionTask* task, std::size_t first, std::size_t last,
        std::size_t num_parts)
      : call_(call),
        task_(task),
        next_(first),
        last_(task == nullptr ? first : last),
        step_((last_ - first + num_parts - 1) / num_parts) {}

  void some() { fetch_to(smaller(next_ + step_, last_)); }
  void rest() { fetch_to(last_); }

 private:
  void fetch_to(std::size_t end) {
    if (next_ < end) fetch(call_, *task_, next_, end);
    next_ = end;
  }

  const AttentionCall& call_;
  const AttentionTask* task_;
  std::size_t next_;
  std::size_t last_;
  std::size_t step_;
};

}  // namespace
}  // namespace everbatch::EVERBATCH_PATH
