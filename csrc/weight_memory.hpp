// Memory for weights: piece after piece out of large chunks, which lie in huge pages where the system
// has them.
//
// A step reads all weights once. In pages of 4 KiB it would look up 512 times as many addresses, and
// what a CPU fetches ahead by itself ends with each page. One matrix is often too small for a huge
// page, so they share them.
#pragma once

#include <cstddef>
#include <memory>
#include <mutex>

namespace everbatch {

class WeightMemory {
 public:
  explicit WeightMemory(bool has_huge_pages) : has_huge_pages_(has_huge_pages) {}
  WeightMemory(const WeightMemory&) = delete;
  WeightMemory& operator=(const WeightMemory&) = delete;

  // Bytes that are 0 and start at a cache line. A chunk is given back with the last piece of it.
  std::shared_ptr<std::byte> take(std::size_t num_bytes);

 private:
  const bool has_huge_pages_;
  std::mutex one_caller_;
  std::shared_ptr<std::byte> chunk_;
  std::size_t num_used_ = 0;
  std::size_t size_ = 0;
};

}  // namespace everbatch
