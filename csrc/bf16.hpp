// bfloat16: the upper half of a float32. Conversions as plain arithmetic, which compilers turn into
// vector code on every machine.
//
// Everything here has internal linkage: kernels are compiled once for each path of the CPU, and a
// function shared between those compilations could carry instructions that this machine lacks.
#pragma once

#include <cstdint>

namespace everbatch {

using Bf16 = std::uint16_t;

constexpr Bf16 kBf16Nan = 0x7fc0;

static inline float to_float(Bf16 value) {
  return __builtin_bit_cast(float, static_cast<std::uint32_t>(value) << 16);
}

// Round to nearest, ties to even; a NaN stays one.
static inline Bf16 to_bf16(float value) {
  const std::uint32_t bits = __builtin_bit_cast(std::uint32_t, value);
  const std::uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  return static_cast<Bf16>(value != value ? kBf16Nan : rounded);
}

}  // namespace everbatch
