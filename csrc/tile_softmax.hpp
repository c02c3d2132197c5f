// What softmax does to one row of a tile's scores; included by attention.cpp only.
#pragma once

#include "kernels.hpp"
#include "path_math.hpp"

namespace everbatch::EVERBATCH_PATH {
namespace {

// Scale the scores of a tile, in place; give the largest of them and of `largest`.
inline float scale_and_find_largest(float* __restrict scores, float scale, float largest) {
#if defined(EVERBATCH_AVX512)
  // The same as below, which GCC 12 makes scalar code of.
  const __m512 factor = _mm512_set1_ps(scale);
  __m512 vector = _mm512_set1_ps(largest);
  for (std::size_t first = 0; first < kTilePositions; first += kLanes) {
    const __m512 scaled = _mm512_mul_ps(_mm512_loadu_ps(scores + first), factor);
    _mm512_storeu_ps(scores + first, scaled);
    vector = _mm512_max_ps(scaled, vector);  // The second one where the first is a NaN.
  }
  return _mm512_reduce_max_ps(vector);
#else
  float lanes[kLanes];
  for (std::size_t lane = 0; lane < kLanes; ++lane) lanes[lane] = largest;
  for (std::size_t first = 0; first < kTilePositions; first += kLanes) {
    for (std::size_t lane = 0; lane < kLanes; ++lane) {
      const float score = scores[first + lane] * scale;
      scores[first + lane] = score;
      // False for a NaN, which so stays out of here; the weights will have it.
      lanes[lane] = score > lanes[lane] ? score : lanes[lane];
    }
  }
  return join_lanes<kLanes>(lanes, [](float a, float b) { return b > a ? b : a; });
#endif
}

#if defined(EVERBATCH_AVX512)

inline void exponentiate(const float* scores, float largest, Bf16* weights) {
  const __m512 most = _mm512_set1_ps(largest);
  for (std::size_t i = 0; i < kTilePositions; i += 2 * kLanes) {
    const __m512 lower = exp_of_16(_mm512_sub_ps(_mm512_loadu_ps(scores + i), most));
    const __m512 upper = exp_of_16(_mm512_sub_ps(_mm512_loadu_ps(scores + i + kLanes), most));
    // Rounds as to_bf16 does: none of these is subnormal, and a NaN stays one.
    _mm512_storeu_si512(weights + i, (__m512i)_mm512_cvtne2ps_pbh(upper, lower));
  }
}

#else

inline void exponentiate(const float* __restrict scores, float largest, Bf16* __restrict weights) {
  for (std::size_t i = 0; i < kTilePositions; ++i) {
    weights[i] = to_bf16(exp_of(scores[i] - largest));
  }
}

#endif

// totals += weights, lane by lane.
inline void add_weights(const Bf16* __restrict weights, float* __restrict totals) {
  for (std::size_t first = 0; first < kTilePositions; first += kLanes) {
    for (std::size_t lane = 0; lane < kLanes; ++lane) {
      totals[lane] += to_float(weights[first + lane]);
    }
  }
}

}  // namespace
}  // namespace everbatch::EVERBATCH_PATH
