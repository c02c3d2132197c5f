// What sampling does along a row of logits: plain loops, which compilers turn into vector code.
//
// All of it has one result on every path: a maximum and a count have no rounding, a weight is a fixed
// row of float32 operations, and weights are summed as whole numbers.
#include "kernels.hpp"
#include "path_math.hpp"

namespace everbatch::EVERBATCH_PATH {
namespace {

constexpr float kInfinity = __builtin_inff();
// What stays in a core's L1 cache between two loops over it.
constexpr std::size_t kBlock = 1024;
// A weight is below the unit at a depth of 28: 1,024 buckets reach to 32.
constexpr float kBucketsPerUnit = 32.0f;
constexpr float kLastBucket = static_cast<float>(kNumBuckets - 1);

// The lowest index of a value; 0 if it is not there.
std::size_t find(const float* values, std::size_t size, float wanted) {
  std::size_t first = 0;
  for (; first + kLanes <= size; first += kLanes) {
    int is_here = 0;
    for (std::size_t lane = 0; lane < kLanes; ++lane) is_here |= values[first + lane] == wanted;
    if (is_here) break;
  }
  for (; first < size; ++first) {
    if (values[first] == wanted) return first;
  }
  return 0;
}

inline float scaled(const WeighCall& call, std::size_t index) {
  return (call.values[index] - call.largest) / call.temperature;
}

}  // namespace

std::int64_t sum_weights(const float* weights, std::size_t size) {
  std::int64_t sum = 0;
  for (std::size_t i = 0; i < size; ++i) sum += static_cast<std::int64_t>(weights[i] * kUnitsOfOne);
  return sum;
}

RowExtremes find_extremes(const float* values, std::size_t size) {
  float largest[kLanes], spoilt[kLanes] = {};
  std::int32_t num_nans[kLanes] = {};
  for (std::size_t lane = 0; lane < kLanes; ++lane) largest[lane] = -kInfinity;
  const auto look = [&](float value, std::size_t lane) {
    largest[lane] = value > largest[lane] ? value : largest[lane];
    spoilt[lane] += value * 0.0f;  // A NaN from the first infinity or NaN on.
    num_nans[lane] += value != value;
  };
  std::size_t index = 0;
  for (; index + kLanes <= size; index += kLanes) {
    for (std::size_t lane = 0; lane < kLanes; ++lane) look(values[index + lane], lane);
  }
  for (std::size_t lane = 0; index < size; ++index, ++lane) look(values[index], lane);
  std::int32_t nans = 0;
  for (std::size_t lane = 0; lane < kLanes; ++lane) nans += num_nans[lane];
  const float found = join_lanes<kLanes>(largest, [](float a, float b) { return b > a ? b : a; });
  return {found, find(values, size, found), sum_of_lanes(spoilt) == 0.0f, nans > 0};
}

std::int64_t weigh(const WeighCall& call, float* __restrict weights) {
  std::int64_t sum = 0;
  for (std::size_t first = 0; first < call.size; first += kBlock) {
    const std::size_t last = smaller(call.size, first + kBlock);
    for (std::size_t i = first; i < last; ++i) {
      const float weight = exp_of(scaled(call, i));
      weights[i] = weight < call.min_p ? 0.0f : weight;
    }
    sum += sum_weights(weights + first, last - first);
  }
  return sum;
}

void find_buckets(const WeighCall& call, Bucket* __restrict buckets) {
  for (std::size_t i = 0; i < call.size; ++i) {
    const float depth = -scaled(call, i) * kBucketsPerUnit;
    const float held = depth < kLastBucket ? depth : kLastBucket;
    buckets[i] = static_cast<Bucket>(static_cast<std::int32_t>(held));
  }
}

std::size_t collect(const Bucket* buckets, std::size_t size, Bucket wanted, std::int32_t* ids) {
  std::size_t count = 0;
  for (std::size_t first = 0; first < size; first += kLanes) {
    const std::size_t last = smaller(size, first + kLanes);
    int is_here = 0;
    for (std::size_t i = first; i < last; ++i) is_here |= buckets[i] == wanted;
    if (!is_here) continue;
    for (std::size_t i = first; i < last; ++i) {
      ids[count] = static_cast<std::int32_t>(i);
      count += buckets[i] == wanted;
    }
  }
  return count;
}

void drop_from(const Bucket* __restrict buckets, std::size_t size, Bucket first,
               float* __restrict weights) {
  for (std::size_t i = 0; i < size; ++i) weights[i] = buckets[i] < first ? weights[i] : 0.0f;
}

std::size_t find_in_cumulative(const float* weights, std::size_t size, std::int64_t target) {
  std::int64_t before = 0;
  for (std::size_t first = 0; first < size; first += kBlock) {
    const std::size_t last = smaller(size, first + kBlock);
    const std::int64_t sum = sum_weights(weights + first, last - first);
    if (before + sum <= target) {
      before += sum;
      continue;
    }
    for (std::size_t i = first; i < last; ++i) {
      before += static_cast<std::int64_t>(weights[i] * kUnitsOfOne);
      if (before > target) return i;
    }
  }
  return size - 1;
}

}  // namespace everbatch::EVERBATCH_PATH
