// What the files that know Python share: numpy arrays of exact type and layout, and refusals.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "kernels.hpp"

namespace everbatch {

template <typename Element, std::size_t Dimensions>
using Array = nanobind::ndarray<Element, nanobind::numpy, nanobind::ndim<Dimensions>,
                                nanobind::c_contig, nanobind::device::cpu>;
using Floats = Array<const float, 1>;
using FloatMatrix = Array<const float, 2>;
using Int32s = Array<const std::int32_t, 1>;
using Int32Matrix = Array<const std::int32_t, 2>;
using Int64s = Array<const std::int64_t, 1>;

inline void require(bool holds, const std::string& message) {
  if (!holds) throw std::invalid_argument(message);
}

// numpy makes arrays whose elements lie anywhere, and calls them contiguous.
template <typename... Arrays>
void require_aligned(const Arrays&... arrays) {
  const auto is_aligned = [](const auto& array) {
    return array.nbytes() == 0 ||
           reinterpret_cast<std::uintptr_t>(array.data()) % sizeof(*array.data()) == 0;
  };
  require((is_aligned(arrays) && ...), "an array is not aligned to its elements: copy it");
}

template <typename First, typename Second>
void require_apart(const First& a, const Second& b, const std::string& names) {
  const auto* a_first = reinterpret_cast<const std::byte*>(a.data());
  const auto* b_first = reinterpret_cast<const std::byte*>(b.data());
  const bool overlap = a.nbytes() && b.nbytes() && a_first < b_first + b.nbytes() &&
                       b_first < a_first + a.nbytes();
  require(!overlap, names + " share memory");
}

template <typename Element, typename Source>
std::vector<Element> copied(const Source& array) {
  require_aligned(array);
  return std::vector<Element>(array.data(), array.data() + array.size());
}

}  // namespace everbatch
