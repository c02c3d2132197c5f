// Memory of fixed alignment that starts as zeros. Moves, never copies.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>

namespace everbatch {

// A cache line, and the widest vector register.
constexpr std::size_t kAlignment = 64;

template <typename Element>
class AlignedBuffer {
 public:
  AlignedBuffer() = default;
  explicit AlignedBuffer(std::size_t size) : size_(size) {
    if (size > (SIZE_MAX - kAlignment) / sizeof(Element)) throw std::bad_alloc();
    const std::size_t bytes = (size * sizeof(Element) + kAlignment - 1) / kAlignment * kAlignment;
    if (bytes == 0) return;
    data_.reset(static_cast<Element*>(std::aligned_alloc(kAlignment, bytes)));
    if (!data_) throw std::bad_alloc();
    std::memset(data_.get(), 0, bytes);
  }

  Element* data() { return data_.get(); }
  const Element* data() const { return data_.get(); }
  std::size_t size() const { return size_; }
  std::size_t num_bytes() const { return size_ * sizeof(Element); }

  // Make room for `size` elements at least; what was in it is lost when it grows.
  void reserve(std::size_t size) {
    if (size > size_) *this = AlignedBuffer(size);
  }

 private:
  struct Free {
    void operator()(Element* data) const { std::free(data); }
  };
  std::unique_ptr<Element, Free> data_;
  std::size_t size_ = 0;
};

}  // namespace everbatch
