// Asking for memory before it is needed; included by the files of a path only.
#pragma once

#include "kernels.hpp"
#include "path_math.hpp"

namespace everbatch::EVERBATCH_PATH {
namespace {

// Ask for a line, into the second cache: what is asked for is more than the first one holds. Written as
// assembly where it can be, as GCC 12 drops a function that does nothing but prefetch, calls and all.
[[gnu::always_inline]] inline void ask_for(const std::byte* line) {
#if defined(__x86_64__)
  asm volatile("prefetcht1 %0" : : "m"(*line));
#else
  __builtin_prefetch(line, 0, 2);
#endif
}

// The lines of some blocks, asked for in small parts: a CPU has some dozens of requests under way, and
// waits where there are more.
class LinesAhead {
 public:
  // `some` will be called about so often.
  LinesAhead(const BlocksAhead& blocks, std::size_t num_parts) : blocks_(blocks) {
    std::size_t num_lines = 0;
    for (std::size_t i = 0; i < blocks.num_blocks; ++i) num_lines += 2 * blocks.blocks[i].num_lines;
    if (num_lines == 0) return;
    step_ = (num_lines + num_parts - 1) / num_parts;
    begin_run();
  }

  [[gnu::always_inline]] void some() {
    const std::size_t count = smaller(step_, num_left_);
    for (std::size_t i = 0; i < count; ++i, line_ += kLineBytes) ask_for(line_);
    num_left_ -= count;
    if (num_left_ == 0) begin_run();
  }
  void rest() {
    while (num_left_ != 0) some();
  }

 private:
  // Keys of a block, then its values.
  void begin_run() {
    if (run_ == 2 * blocks_.num_blocks) return;
    const BlockLines& block = blocks_.blocks[run_ / 2];
    line_ = (run_ % 2 == 0 ? blocks_.keys : blocks_.values) + block.offset;
    num_left_ = block.num_lines;
    ++run_;
  }

  const BlocksAhead blocks_;
  const std::byte* line_ = nullptr;
  std::size_t num_left_ = 0;
  std::size_t step_ = 0;
  std::size_t run_ = 0;
};

}  // namespace
}  // namespace everbatch::EVERBATCH_PATH
