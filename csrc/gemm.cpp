// Products of few or many rows with packed matrices: bf16 in, float32 sums.
//
// A tile of the result, some rows by one panel, stays in registers while K runs from its
// beginning to its end. So each output is one chain of additions in one order: the same bits for
// every number of rows, every place in a batch and every way of sharing the work.
#include "kernels.hpp"
#include "lines_ahead.hpp"
#include "path_math.hpp"

#if defined(EVERBATCH_AVX512) || defined(EVERBATCH_AVX2)
#include <immintrin.h>
#endif

namespace everbatch::EVERBATCH_PATH {
namespace {

// The first tile of a panel reads its weights out of memory, the others what the first one has read.
enum class Tile { kFirst, kLater };

// From memory 6 KiB ahead, which hides its latency, and into the second cache: into the first one it is
// slower (docs/kernels.md), probably as a core has fewer requests under way for that. From there 1 KiB
// ahead, as a panel is larger than the first cache.
[[maybe_unused]] constexpr std::size_t kFarAhead = 3072;
[[maybe_unused]] constexpr std::size_t kNearAhead = 512;

// Some of what is needed after the product is asked for every so many pairs of its K.
constexpr std::size_t kPairsPerPart = 16;

#if defined(EVERBATCH_AVX512)

// 12 x 2 sums, two vectors of weights and one of x: 27 of 32 registers.
constexpr int kMaxTileRows = 12;

// One instruction multiplies and adds both values of a pair.
template <int Rows, Tile kTile>
void multiply_tile(const GemmCall& call, const Bf16* x, const Bf16* panel, float* tile,
                   LinesAhead& ahead) {
  __m512 sums[Rows][2];
  // Unrolled, here and in the end, so that no sum is in memory in between.
#pragma GCC unroll 12
  for (int row = 0; row < Rows; ++row) sums[row][0] = sums[row][1] = _mm512_setzero_ps();
  for (std::size_t k = 0; k < call.num_k_pairs; ++k, panel += kPanelPairValues) {
    if (k % kPairsPerPart == 0) ahead.some();
    const auto weights_0 = (__m512bh)_mm512_load_si512(panel);
    const auto weights_1 = (__m512bh)_mm512_load_si512(panel + kPanelColumns);
    if constexpr (kTile == Tile::kFirst) {
      _mm_prefetch(panel + kFarAhead, _MM_HINT_T1);
      _mm_prefetch(panel + kFarAhead + kPanelColumns, _MM_HINT_T1);
    } else {
      _mm_prefetch(panel + kNearAhead, _MM_HINT_T0);
      _mm_prefetch(panel + kNearAhead + kPanelColumns, _MM_HINT_T0);
    }
#pragma GCC unroll 12
    for (int row = 0; row < Rows; ++row) {
      const std::uint32_t pair = load_pair(x + row * call.x_stride + 2 * k);
      const auto both = (__m512bh)_mm512_set1_epi32(static_cast<int>(pair));
      sums[row][0] = _mm512_dpbf16_ps(sums[row][0], both, weights_0);
      sums[row][1] = _mm512_dpbf16_ps(sums[row][1], both, weights_1);
    }
  }
#pragma GCC unroll 12
  for (int row = 0; row < Rows; ++row) {
    _mm512_store_ps(tile + row * kPanelColumns, sums[row][0]);
    _mm512_store_ps(tile + row * kPanelColumns + kHalfColumns, sums[row][1]);
  }
}

#elif defined(EVERBATCH_AVX2)

// 4 x 2 sums, four vectors of weights, two of x: 14 of 16 registers.
constexpr int kMaxTileRows = 4;

// A pair of bf16 is two float32 without their lower halves: shifted up, and masked.
template <int Rows, Tile kTile>
void multiply_tile(const GemmCall& call, const Bf16* x, const Bf16* panel, float* tile,
                   LinesAhead& ahead) {
  const __m256i upper = _mm256_set1_epi32(static_cast<int>(0xffff0000u));
  for (std::size_t half = 0; half < kPanelColumns; half += kHalfColumns) {
    __m256 sums[Rows][2];
    for (int row = 0; row < Rows; ++row) sums[row][0] = sums[row][1] = _mm256_setzero_ps();
    for (std::size_t k = 0; k < call.num_k_pairs; ++k) {
      if (half == 0 && k % kPairsPerPart == 0) ahead.some();
      const Bf16* values = panel + k * kPanelPairValues + 2 * half;
      const auto* weights = reinterpret_cast<const __m256i*>(values);
      const __m256i pairs_0 = _mm256_load_si256(weights);
      const __m256i pairs_1 = _mm256_load_si256(weights + 1);
      if constexpr (kTile == Tile::kFirst) {
        _mm_prefetch(reinterpret_cast<const char*>(values + kFarAhead), _MM_HINT_T1);
      } else {
        _mm_prefetch(reinterpret_cast<const char*>(values + kNearAhead), _MM_HINT_T0);
      }
      const __m256 even_0 = _mm256_castsi256_ps(_mm256_slli_epi32(pairs_0, 16));
      const __m256 even_1 = _mm256_castsi256_ps(_mm256_slli_epi32(pairs_1, 16));
      const __m256 odd_0 = _mm256_castsi256_ps(_mm256_and_si256(pairs_0, upper));
      const __m256 odd_1 = _mm256_castsi256_ps(_mm256_and_si256(pairs_1, upper));
#pragma GCC unroll 4
      for (int row = 0; row < Rows; ++row) {
        const std::uint32_t pair = load_pair(x + row * call.x_stride + 2 * k);
        const __m256i both = _mm256_set1_epi32(static_cast<int>(pair));
        const __m256 even = _mm256_castsi256_ps(_mm256_slli_epi32(both, 16));
        const __m256 odd = _mm256_castsi256_ps(_mm256_and_si256(both, upper));
        sums[row][0] = _mm256_fmadd_ps(even, even_0, sums[row][0]);
        sums[row][1] = _mm256_fmadd_ps(even, even_1, sums[row][1]);
        sums[row][0] = _mm256_fmadd_ps(odd, odd_0, sums[row][0]);
        sums[row][1] = _mm256_fmadd_ps(odd, odd_1, sums[row][1]);
      }
    }
    for (int row = 0; row < Rows; ++row) {
      _mm256_store_ps(tile + row * kPanelColumns + half, sums[row][0]);
      _mm256_store_ps(tile + row * kPanelColumns + half + 8, sums[row][1]);
    }
  }
}

#else

constexpr int kMaxTileRows = 2;

template <int Rows, Tile kTile>
void multiply_tile(const GemmCall& call, const Bf16* x, const Bf16* panel, float* tile,
                   LinesAhead& ahead) {
  for (std::size_t half = 0; half < kPanelColumns; half += kHalfColumns) {
    float sums[Rows][kHalfColumns] = {};
    for (std::size_t k = 0; k < call.num_k_pairs; ++k) {
      if (half == 0 && k % kPairsPerPart == 0) ahead.some();
      const Bf16* weights = panel + k * kPanelPairValues + 2 * half;
      float even[kHalfColumns], odd[kHalfColumns];
      for (std::size_t column = 0; column < kHalfColumns; ++column) {
        const std::uint32_t pair = load_pair(weights + 2 * column);
        even[column] = to_float(static_cast<Bf16>(pair));
        odd[column] = to_float(static_cast<Bf16>(pair >> 16));
      }
      for (int row = 0; row < Rows; ++row) {
        const Bf16* values = x + row * call.x_stride + 2 * k;
        const float x_even = to_float(values[0]), x_odd = to_float(values[1]);
        for (std::size_t column = 0; column < kHalfColumns; ++column) {
          sums[row][column] += x_even * even[column];
          sums[row][column] += x_odd * odd[column];
        }
      }
    }
    for (int row = 0; row < Rows; ++row) {
      __builtin_memcpy(tile + row * kPanelColumns + half, sums[row], sizeof sums[row]);
    }
  }
}

#endif

using MultiplyTile = void (*)(const GemmCall&, const Bf16*, const Bf16*, float*, LinesAhead&);

template <Tile kTile, int Rows>
constexpr void fill(MultiplyTile (&by_rows)[kMaxTileRows + 1]) {
  by_rows[Rows] = multiply_tile<Rows, kTile>;
  if constexpr (Rows > 1) fill<kTile, Rows - 1>(by_rows);
}

struct TileTable {
  MultiplyTile first[kMaxTileRows + 1] = {};
  MultiplyTile later[kMaxTileRows + 1] = {};
  constexpr TileTable() {
    fill<Tile::kFirst, kMaxTileRows>(first);
    fill<Tile::kLater, kMaxTileRows>(later);
  }
};
constexpr TileTable kTiles;

void add_bias(const float* bias, std::size_t num_rows, float* tile) {
  for (std::size_t row = 0; row < num_rows; ++row) {
    for (std::size_t column = 0; column < kPanelColumns; ++column) {
      tile[row * kPanelColumns + column] += bias[column];
    }
  }
}

// Write float32 columns; `kIsAdding` to what is there.
template <bool kIsAdding>
void write_floats(const GemmCall& call, const float* tile, std::size_t first_row,
                  std::size_t num_rows, std::size_t first_column) {
  const std::size_t num_columns = smaller(call.num_columns - first_column, kPanelColumns);
  for (std::size_t row = 0; row < num_rows; ++row) {
    float* out = static_cast<float*>(call.out) + (first_row + row) * call.out_stride + first_column;
    const float* values = tile + row * kPanelColumns;
    for (std::size_t column = 0; column < num_columns; ++column) {
      out[column] = kIsAdding ? out[column] + values[column] : values[column];
    }
  }
}

// product = silu(gate) * up, of half a panel.
inline void silu_times(const float* gate, const float* up, Bf16* product) {
#if defined(EVERBATCH_AVX512)
  const __m512 x = _mm512_load_ps(gate);
  const __m512 most = _mm512_set1_ps(88.0f), zero = _mm512_setzero_ps();
  const __m512 exponential = exp_of_16(_mm512_min_ps(most, _mm512_sub_ps(zero, x)));
  const __m512 silu = _mm512_div_ps(x, _mm512_add_ps(_mm512_set1_ps(1.0f), exponential));
  const auto rounded = (__m256i)_mm512_cvtneps_pbh(_mm512_mul_ps(silu, _mm512_load_ps(up)));
  _mm256_store_si256(reinterpret_cast<__m256i*>(product), rounded);
#else
  for (std::size_t column = 0; column < kHalfColumns; ++column) {
    product[column] = to_bf16(gate[column] / (1.0f + exp_of(-gate[column])) * up[column]);
  }
#endif
}

void write_silu_times(const GemmCall& call, const float* tile, std::size_t first_row,
                      std::size_t num_rows, std::size_t first_column) {
  const std::size_t num_columns = smaller(call.num_columns - first_column, kHalfColumns);
  for (std::size_t row = 0; row < num_rows; ++row) {
    Bf16* out = static_cast<Bf16*>(call.out) + (first_row + row) * call.out_stride + first_column;
    const float* gate = tile + row * kPanelColumns;
    const float* up = gate + kHalfColumns;
    alignas(32) Bf16 product[kHalfColumns];
    silu_times(gate, up, product);
    if (num_columns == kHalfColumns) {
      __builtin_memcpy(out, product, sizeof product);
    } else {
      __builtin_memcpy(out, product, num_columns * sizeof(Bf16));
    }
  }
}

// Of `count` columns from `first` on, one a lane.
inline void keep_largest_of(const float* values, std::size_t count, std::int32_t first,
                            LargestLanes& kept) {
#if defined(EVERBATCH_AVX512)
  const auto mask = static_cast<__mmask16>((1u << count) - 1);
  const __m512 lanes = _mm512_maskz_loadu_ps(mask, values);
  const __m512 spoilt = _mm512_loadu_ps(kept.spoilt), before = _mm512_loadu_ps(kept.values);
  _mm512_storeu_ps(kept.spoilt, _mm512_add_ps(spoilt, _mm512_mul_ps(lanes, _mm512_setzero_ps())));
  const __mmask16 is_larger = _mm512_mask_cmp_ps_mask(mask, lanes, before, _CMP_GT_OQ);
  const __m512i columns = _mm512_add_epi32(
      _mm512_set1_epi32(first),
      _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15));
  _mm512_mask_storeu_ps(kept.values, is_larger, lanes);
  _mm512_mask_storeu_epi32(kept.columns, is_larger, columns);
#else
  for (std::size_t lane = 0; lane < count; ++lane) {
    kept.spoilt[lane] += values[lane] * 0.0f;
    const bool is_larger = values[lane] > kept.values[lane];
    kept.values[lane] = is_larger ? values[lane] : kept.values[lane];
    kept.columns[lane] =
        is_larger ? first + static_cast<std::int32_t>(lane) : kept.columns[lane];
  }
#endif
}

// Keep the largest of each lane, and the first column of equal ones: columns come in their order.
void keep_largest(const GemmCall& call, const float* tile, std::size_t first_row,
                  std::size_t num_rows, std::size_t first_column) {
  auto* kept = static_cast<LargestLanes*>(call.out) + first_row;
  for (std::size_t row = 0; row < num_rows; ++row) {
    for (std::size_t half = 0; half < kPanelColumns; half += kHalfColumns) {
      // A column of padding is none.
      const std::size_t first = first_column + half;
      if (first >= call.num_columns) break;
      const std::size_t count = smaller(call.num_columns - first, kHalfColumns);
      keep_largest_of(tile + row * kPanelColumns + half, count, static_cast<std::int32_t>(first),
                      kept[row]);
    }
  }
}

}  // namespace

void gemm(const GemmCall& call, Range rows, Range panels) {
  alignas(64) float tile[kMaxTileRows * kPanelColumns];
  // Tiles of equal height, or a row more, as one of few rows waits for its own sums: 26 rows take 8 %
  // less time as 9, 9 and 8 than as 12, 12 and 2.
  const std::size_t size = rows.last - rows.first;
  const std::size_t num_tiles = (size + kMaxTileRows - 1) / kMaxTileRows;
  const std::size_t num_parts = (call.num_k_pairs + kPairsPerPart - 1) / kPairsPerPart;
  LinesAhead ahead(call.ahead, num_tiles * (panels.last - panels.first) * num_parts);
  for (std::size_t panel = panels.first; panel < panels.last; ++panel) {
    const Bf16* weights = call.panels + panel * call.panel_stride;
    for (std::size_t index = 0; index < num_tiles; ++index) {
      const std::size_t row = rows.first + index * size / num_tiles;
      const std::size_t num_rows = rows.first + (index + 1) * size / num_tiles - row;
      const MultiplyTile multiply = (index == 0 ? kTiles.first : kTiles.later)[num_rows];
      multiply(call, call.x + row * call.x_stride, weights, tile, ahead);
      if (call.bias != nullptr) add_bias(call.bias + panel * kPanelColumns, num_rows, tile);
      switch (call.output) {
        case GemmOutput::kStore:
          write_floats<false>(call, tile, row, num_rows, panel * kPanelColumns);
          break;
        case GemmOutput::kAdd:
          write_floats<true>(call, tile, row, num_rows, panel * kPanelColumns);
          break;
        case GemmOutput::kSiluTimes:
          write_silu_times(call, tile, row, num_rows, panel * kHalfColumns);
          break;
        case GemmOutput::kLargest:
          keep_largest(call, tile, row, num_rows, panel * kPanelColumns);
          break;
      }
    }
  }
  ahead.rest();
}

}  // namespace everbatch::EVERBATCH_PATH
