// Keys and values of a tile as panels, the layout that products read; included by attention.cpp only.
#pragma once

#include "kernels.hpp"
#include "path_math.hpp"

#if defined(EVERBATCH_AVX512)
#include <immintrin.h>
#endif

namespace everbatch::EVERBATCH_PATH {
namespace {

#if defined(EVERBATCH_AVX512)

// Transpose 16 rows of `count` pairs (at most 16) into half of a panel: out [count][32], of which 16.
void transpose_pairs(const Bf16* const* rows, std::size_t first_pair, std::size_t count,
                     Bf16* out) {
  const auto mask = static_cast<__mmask16>((1u << count) - 1);
  __m512i a[16], b[16];
  for (int i = 0; i < 16; ++i) a[i] = _mm512_maskz_loadu_epi32(mask, rows[i] + 2 * first_pair);
  for (int i = 0; i < 16; i += 2) {
    b[i] = _mm512_unpacklo_epi32(a[i], a[i + 1]);
    b[i + 1] = _mm512_unpackhi_epi32(a[i], a[i + 1]);
  }
  for (int i = 0; i < 16; i += 4) {
    a[i] = _mm512_unpacklo_epi64(b[i], b[i + 2]);
    a[i + 1] = _mm512_unpackhi_epi64(b[i], b[i + 2]);
    a[i + 2] = _mm512_unpacklo_epi64(b[i + 1], b[i + 3]);
    a[i + 3] = _mm512_unpackhi_epi64(b[i + 1], b[i + 3]);
  }
  // a[4 q + c] holds column 4 l + c of rows 4 q to 4 q + 3 in its 128-bit lane l.
  for (int c = 0; c < 4; ++c) {
    const __m512i lower_01 = _mm512_shuffle_i32x4(a[c], a[4 + c], 0x88);
    const __m512i lower_23 = _mm512_shuffle_i32x4(a[8 + c], a[12 + c], 0x88);
    const __m512i upper_01 = _mm512_shuffle_i32x4(a[c], a[4 + c], 0xdd);
    const __m512i upper_23 = _mm512_shuffle_i32x4(a[8 + c], a[12 + c], 0xdd);
    b[c] = _mm512_shuffle_i32x4(lower_01, lower_23, 0x88);
    b[c + 8] = _mm512_shuffle_i32x4(lower_01, lower_23, 0xdd);
    b[c + 4] = _mm512_shuffle_i32x4(upper_01, upper_23, 0x88);
    b[c + 12] = _mm512_shuffle_i32x4(upper_01, upper_23, 0xdd);
  }
  // Unrolled, so that the values stay in registers on their way.
#pragma GCC unroll 16
  for (std::size_t i = 0; i < 16; ++i) {
    if (i < count) _mm512_store_si512(out + i * kPanelPairValues, b[i]);
  }
}

#else

void transpose_pairs(const Bf16* const* rows, std::size_t first_pair, std::size_t count,
                     Bf16* out) {
  for (std::size_t row = 0; row < kHalfColumns; ++row) {
    for (std::size_t i = 0; i < count; ++i) {
      __builtin_memcpy(out + i * kPanelPairValues + 2 * row, rows[row] + 2 * (first_pair + i),
                       2 * sizeof(Bf16));
    }
  }
}

#endif

// Keys as panels whose columns are positions, and whose K is the head's dimension: 16 positions from
// `first` of the tile on, half of a panel.
void pack_keys(const Bf16* const* keys, std::size_t first, std::size_t head_dim, Bf16* panels) {
  const std::size_t num_pairs = head_dim / 2;
  const std::size_t half = first % kPanelColumns;
  Bf16* out = panels + (first - half) * head_dim + 2 * half;
  for (std::size_t pair = 0; pair < num_pairs; pair += 16) {
    transpose_pairs(keys, pair, smaller(num_pairs - pair, 16), out + pair * kPanelPairValues);
  }
}

// Two rows [count] side by side: out [count] pairs.
inline void interleave(const Bf16* even, const Bf16* odd, std::size_t count, Bf16* out) {
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint32_t pair = even[i] | static_cast<std::uint32_t>(odd[i]) << 16;
    __builtin_memcpy(out + 2 * i, &pair, sizeof pair);
  }
}

#if defined(EVERBATCH_AVX512)

// The same for 32 columns, into two vectors.
[[gnu::always_inline]] inline void interleave_panel(const Bf16* even, const Bf16* odd,
                                                    __m512i& first, __m512i& second) {
  alignas(64) static constexpr std::uint16_t kLower[32] = {0,  32, 1,  33, 2,  34, 3,  35,
                                                           4,  36, 5,  37, 6,  38, 7,  39,
                                                           8,  40, 9,  41, 10, 42, 11, 43,
                                                           12, 44, 13, 45, 14, 46, 15, 47};
  const __m512i lower = _mm512_load_si512(kLower);
  const __m512i upper = _mm512_add_epi16(lower, _mm512_set1_epi16(16));
  const __m512i evens = _mm512_loadu_si512(even), odds = _mm512_loadu_si512(odd);
  first = _mm512_permutex2var_epi16(evens, lower, odds);
  second = _mm512_permutex2var_epi16(evens, upper, odds);
}

#endif

// The same for all columns of a panel.
inline void interleave_panel(const Bf16* even, const Bf16* odd, Bf16* out) {
#if defined(EVERBATCH_AVX512)
  __m512i first, second;
  interleave_panel(even, odd, first, second);
  _mm512_store_si512(out, first);
  _mm512_store_si512(out + kPanelColumns, second);
#else
  interleave(even, odd, kPanelColumns, out);
#endif
}

// Values as panels whose columns are the head's dimensions, and whose K is the positions: `count` pairs
// of them from pair `first_pair` of the tile on.
void pack_values(const Bf16* const* values, std::size_t first_pair, std::size_t count,
                 std::size_t head_dim, Bf16* panels) {
  for (std::size_t pair = 0; pair < count; ++pair) {
    const Bf16* even = values[2 * pair];
    const Bf16* odd = values[2 * pair + 1];
    Bf16* out = panels + (first_pair + pair) * kPanelPairValues;
    std::size_t first = 0;
    for (; first + kPanelColumns <= head_dim; first += kPanelColumns) {
      interleave_panel(even + first, odd + first, out + first * kTilePositions);
    }
    if (first < head_dim) {
      interleave(even + first, odd + first, head_dim - first, out + first * kTilePositions);
    }
  }
}

}  // namespace
}  // namespace everbatch::EVERBATCH_PATH
