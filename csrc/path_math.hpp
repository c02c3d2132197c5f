// Functions of numbers, for the files that are compiled once for each path.
//
// Plain arithmetic without branches, which compilers turn into vector code. Products and sums are
// never contracted (-ffp-contract=off), so a value has the same bits in the body of a loop and in
// its tail.
#pragma once

#include <cstddef>
#include <cstdint>

#include "bf16.hpp"

#if defined(EVERBATCH_AVX512)
#include <immintrin.h>
#endif

namespace everbatch::EVERBATCH_PATH {

// std::min, which is not for these files (bf16.hpp says why).
static constexpr std::size_t smaller(std::size_t a, std::size_t b) { return a < b ? a : b; }

// Two values that lie side by side, as one.
[[maybe_unused]] static inline std::uint32_t load_pair(const Bf16* x) {
  std::uint32_t pair;
  __builtin_memcpy(&pair, x, sizeof pair);
  return pair;
}

// Sums are kept in so many lanes, on every path, and joined at the end.
constexpr std::size_t kLanes = 16;

// e ** x, to about 2 units in the last place; x is held in [-87, 88], a NaN stays one.
// Source: Cephes, expf.c: x = n * ln(2) + r, and a polynomial in r.
static inline float exp_of(float x) {
  x = x < -87.0f ? -87.0f : x;
  x = x > 88.0f ? 88.0f : x;
  // Adding 1.5 * 2 ** 23 leaves a float32 no place for a fraction: it rounds to the nearest integer.
  constexpr float kRounder = 12582912.0f;
  const float shifted = x * 1.44269504088896341f + kRounder;
  const std::uint32_t n = __builtin_bit_cast(std::uint32_t, shifted) - 0x4b400000u;
  const float whole = shifted - kRounder;
  const float r = (x - whole * 0.693359375f) + whole * 2.12194440e-4f;
  float y = 1.9875691500e-4f;
  y = y * r + 1.3981999507e-3f;
  y = y * r + 8.3334519073e-3f;
  y = y * r + 4.1665795894e-2f;
  y = y * r + 1.6666665459e-1f;
  y = y * r + 5.0000001201e-1f;
  y = y * r * r + r + 1.0f;
  return y * __builtin_bit_cast(float, (n + 127u) << 23);
}

#if defined(EVERBATCH_AVX512)

// exp_of, operation by operation, of numbers that are not above 88: for where a compiler makes more
// of it than it is.
[[maybe_unused]] static inline __m512 exp_of_16(__m512 x) {
  x = _mm512_max_ps(_mm512_set1_ps(-87.0f), x);  // A NaN stays one.
  const __m512 rounder = _mm512_set1_ps(12582912.0f);
  const __m512 shifted =
      _mm512_add_ps(_mm512_mul_ps(x, _mm512_set1_ps(1.44269504088896341f)), rounder);
  const __m512 whole = _mm512_sub_ps(shifted, rounder);
  const __m512 r =
      _mm512_add_ps(_mm512_sub_ps(x, _mm512_mul_ps(whole, _mm512_set1_ps(0.693359375f))),
                    _mm512_mul_ps(whole, _mm512_set1_ps(2.12194440e-4f)));
  __m512 y = _mm512_set1_ps(1.9875691500e-4f);
  constexpr float kCoefficients[] = {1.3981999507e-3f, 8.3334519073e-3f, 4.1665795894e-2f,
                                     1.6666665459e-1f, 5.0000001201e-1f};
  for (const float coefficient : kCoefficients) {
    y = _mm512_add_ps(_mm512_mul_ps(y, r), _mm512_set1_ps(coefficient));
  }
  y = _mm512_add_ps(_mm512_mul_ps(_mm512_mul_ps(y, r), r), r);
  y = _mm512_add_ps(y, _mm512_set1_ps(1.0f));
  const __m512i exponent = _mm512_add_epi32(_mm512_castps_si512(shifted),
                                            _mm512_set1_epi32(127 - 0x4b400000));
  return _mm512_mul_ps(y, _mm512_castsi512_ps(_mm512_slli_epi32(exponent, 23)));
}

#endif

// Join lane by lane, the upper half to the lower, until one is left: a tree of fixed shape.
template <std::size_t Width, typename Join>
static inline float join_lanes(float* lanes, Join join) {
  if constexpr (Width == 1) {
    return lanes[0];
  } else {
    constexpr std::size_t kHalf = Width / 2;
    for (std::size_t lane = 0; lane < kHalf; ++lane) {
      lanes[lane] = join(lanes[lane], lanes[lane + kHalf]);
    }
    return join_lanes<kHalf>(lanes, join);
  }
}

// The sum of kLanes values.
static inline float sum_of_lanes(const float* lanes) {
  float sums[kLanes];
  for (std::size_t lane = 0; lane < kLanes; ++lane) sums[lane] = lanes[lane];
  return join_lanes<kLanes>(sums, [](float a, float b) { return a + b; });
}

}  // namespace everbatch::EVERBATCH_PATH
