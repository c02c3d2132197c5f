// The two products of a tile for few rows, a decode's; included by attention.cpp only.
//
// The same sums in the same order as those of gemm.cpp, so the same bits. But few rows have few sums
// under way, each of which waits for itself, so these take twice as many columns at a time; and what
// is packed for them is used once, so values are put in order on their way into a product.
#pragma once

#include "kernels.hpp"
#include "path_math.hpp"

#if defined(EVERBATCH_AVX512)
#include <immintrin.h>

#include "tile_packing.hpp"
#endif

namespace everbatch::EVERBATCH_PATH {
namespace {

#if defined(EVERBATCH_AVX512)

// So many rows by 64 columns of sums are in registers.
constexpr std::size_t kFewRows = 6;

// Scores of 64 positions: rows of queries [D] times two panels of keys.
template <int Rows>
void score_tile(const Bf16* queries, std::size_t head_dim, const Bf16* panels, float* scores) {
  __m512 sums[Rows][4];
  for (int row = 0; row < Rows; ++row) {
    for (int part = 0; part < 4; ++part) sums[row][part] = _mm512_setzero_ps();
  }
  const Bf16* second = panels + kPanelColumns * head_dim;
  for (std::size_t k = 0; k < head_dim; k += 2) {
    const std::size_t place = k * kPanelColumns;
    const __m512bh keys[4] = {(__m512bh)_mm512_load_si512(panels + place),
                              (__m512bh)_mm512_load_si512(panels + place + kPanelColumns),
                              (__m512bh)_mm512_load_si512(second + place),
                              (__m512bh)_mm512_load_si512(second + place + kPanelColumns)};
#pragma GCC unroll 6
    for (int row = 0; row < Rows; ++row) {
      const std::uint32_t pair = load_pair(queries + row * head_dim + k);
      const auto both = (__m512bh)_mm512_set1_epi32(static_cast<int>(pair));
#pragma GCC unroll 4
      for (int part = 0; part < 4; ++part) {
        sums[row][part] = _mm512_dpbf16_ps(sums[row][part], both, keys[part]);
      }
    }
  }
  for (int row = 0; row < Rows; ++row) {
    for (int part = 0; part < 4; ++part) {
      _mm512_storeu_ps(scores + row * kTilePositions + part * kHalfColumns, sums[row][part]);
    }
  }
}

// Add 32 * Panels columns of weights times values to the sums of some rows.
template <int Rows, int Panels>
void add_columns(const Bf16* const* values, std::size_t first_column, const Bf16* weights,
                 std::size_t num_position_pairs, float* sums, std::size_t sums_stride) {
  __m512 products[Rows][2 * Panels];
  for (int row = 0; row < Rows; ++row) {
    for (int part = 0; part < 2 * Panels; ++part) products[row][part] = _mm512_setzero_ps();
  }
  for (std::size_t pair = 0; pair < num_position_pairs; ++pair) {
    const Bf16* even = values[2 * pair] + first_column;
    const Bf16* odd = values[2 * pair + 1] + first_column;
    __m512i columns[2 * Panels];
#pragma GCC unroll 2
    for (int panel = 0; panel < Panels; ++panel) {
      interleave_panel(even + panel * kPanelColumns, odd + panel * kPanelColumns,
                       columns[2 * panel], columns[2 * panel + 1]);
    }
#pragma GCC unroll 6
    for (int row = 0; row < Rows; ++row) {
      const std::uint32_t both = load_pair(weights + row * kTilePositions + 2 * pair);
      const auto weight = (__m512bh)_mm512_set1_epi32(static_cast<int>(both));
#pragma GCC unroll 4
      for (int part = 0; part < 2 * Panels; ++part) {
        products[row][part] =
            _mm512_dpbf16_ps(products[row][part], weight, (__m512bh)columns[part]);
      }
    }
  }
  for (int row = 0; row < Rows; ++row) {
    for (int part = 0; part < 2 * Panels; ++part) {
      float* sum = sums + row * sums_stride + first_column + part * kHalfColumns;
      _mm512_storeu_ps(sum, _mm512_add_ps(_mm512_loadu_ps(sum), products[row][part]));
    }
  }
}

template <int Rows>
void add_values(const Bf16* const* values, std::size_t head_dim, const Bf16* weights,
                std::size_t num_position_pairs, float* sums) {
  std::size_t column = 0;
  for (; column + 2 * kPanelColumns <= head_dim; column += 2 * kPanelColumns) {
    add_columns<Rows, 2>(values, column, weights, num_position_pairs, sums, head_dim);
  }
  if (column < head_dim) {
    add_columns<Rows, 1>(values, column, weights, num_position_pairs, sums, head_dim);
  }
}

struct FewRows {
  void (*score_tile)(const Bf16* queries, std::size_t head_dim, const Bf16* panels, float* scores);
  void (*add_values)(const Bf16* const* values, std::size_t head_dim, const Bf16* weights,
                     std::size_t num_position_pairs, float* sums);
};

template <int Rows>
constexpr FewRows kFew = {score_tile<Rows>, add_values<Rows>};

constexpr FewRows kByRows[kFewRows] = {kFew<1>, kFew<2>, kFew<3>, kFew<4>, kFew<5>, kFew<6>};

#endif

// Scores of a whole tile, if this path has that for so many rows.
inline bool score_few_rows(std::size_t num_rows, std::size_t num_columns, const Bf16* queries,
                           std::size_t head_dim, const Bf16* panels, float* scores) {
#if defined(EVERBATCH_AVX512)
  if (num_rows > kFewRows || num_columns != kTilePositions) return false;
  kByRows[num_rows - 1].score_tile(queries, head_dim, panels, scores);
  return true;
#else
  static_cast<void>(num_rows), static_cast<void>(num_columns), static_cast<void>(queries);
  static_cast<void>(head_dim), static_cast<void>(panels), static_cast<void>(scores);
  return false;
#endif
}

// Add weights [rows, 64] times the values of a tile to sums [rows, D], if this path has that.
inline bool add_few_rows(std::size_t num_rows, const Bf16* const* values, std::size_t head_dim,
                         const Bf16* weights, std::size_t num_position_pairs, float* sums) {
#if defined(EVERBATCH_AVX512)
  if (num_rows > kFewRows || head_dim % kPanelColumns != 0) return false;
  kByRows[num_rows - 1].add_values(values, head_dim, weights, num_position_pairs, sums);
  return true;
#else
  static_cast<void>(num_rows), static_cast<void>(values), static_cast<void>(head_dim);
  static_cast<void>(weights), static_cast<void>(num_position_pairs), static_cast<void>(sums);
  return false;
#endif
}

}  // namespace
}  // namespace everbatch::EVERBATCH_PATH
