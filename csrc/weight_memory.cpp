#include "weight_memory.hpp"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>
#if defined(__linux__)
#include <sys/mman.h>
#endif

#include "aligned_buffer.hpp"
#include "runtime.hpp"

namespace everbatch {
namespace {

// Of x86-64; elsewhere it is only a size.
constexpr std::size_t kHugePage = 2 << 20;
constexpr std::size_t kChunkBytes = 16 * kHugePage;

std::shared_ptr<std::byte> new_chunk(std::size_t size, bool has_huge_pages) {
  std::shared_ptr<std::byte> chunk(static_cast<std::byte*>(std::aligned_alloc(kHugePage, size)),
                                   std::free);
  if (chunk == nullptr) throw std::bad_alloc();
#if defined(__linux__) && defined(MADV_HUGEPAGE)
  // Where it is refused, pages stay as they are.
  if (has_huge_pages) madvise(chunk.get(), size, MADV_HUGEPAGE);
#endif
  return chunk;
}

}  // namespace

std::shared_ptr<std::byte> WeightMemory::take(std::size_t num_bytes) {
  if (num_bytes > SIZE_MAX - kChunkBytes) throw std::bad_alloc();
  const std::lock_guard lock(one_caller_);
  const std::size_t needed = round_up(num_bytes, kAlignment);
  if (needed > size_ - num_used_) {
    const std::size_t size = std::max(round_up(needed, kHugePage), kChunkBytes);
    chunk_ = new_chunk(size, has_huge_pages_);
    size_ = size;
    num_used_ = 0;
  }
  std::byte* const first = chunk_.get() + num_used_;
  num_used_ += needed;
  // Page by page as it is needed: the rest of a chunk takes no memory.
  std::memset(first, 0, needed);
  return {chunk_, first};
}

}  // namespace everbatch
