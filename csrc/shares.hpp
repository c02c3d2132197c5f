// Parts of one operation, cut into a run for each thread: what a thread takes after a part lies beside it.
#pragma once

#include <atomic>
#include <cstddef>
#include <utility>
#include <vector>

#include "aligned_buffer.hpp"
#include "kernels.hpp"

namespace everbatch {

// A thread takes the parts of its own run in their order, and then what others have left.
class Shares {
 public:
  // starts: the first part of each thread's run, and the end of the last one's.
  explicit Shares(std::vector<std::size_t> starts)
      : starts_(std::move(starts)), next_(starts_.size() - 1) {
    for (std::size_t run = 0; run < next_.size(); ++run) next_[run].index = starts_[run];
  }

  struct Taken {
    std::size_t index;
    bool has_next;  // the part after it belongs to the same run
  };

  // Take a part; called as often as there are parts.
  Taken take(std::size_t thread) {
    for (std::size_t run = thread;; run = (run + 1) % next_.size()) {
      const std::size_t end = starts_[run + 1];
      if (next_[run].index.load(std::memory_order_relaxed) >= end) continue;
      const std::size_t index = next_[run].index.fetch_add(1, std::memory_order_relaxed);
      if (index < end) return {index, index + 1 < end};
    }
  }

 private:
  struct alignas(kLineBytes) Next {
    std::atomic<std::size_t> index;
  };

  std::vector<std::size_t> starts_;
  std::vector<Next> next_;
};

}  // namespace everbatch
