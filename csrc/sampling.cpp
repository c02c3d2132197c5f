#include "sampling.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace everbatch {
namespace {

// sampling.py, GREEDY_BELOW.
constexpr float kGreedyBelow = 1e-5f;
constexpr float kInfinity = std::numeric_limits<float>::infinity();

// The order in which tokens are kept: the likeliest first, of equal ones the lowest id.
struct IsLikelier {
  const float* values;
  bool operator()(std::int32_t a, std::int32_t b) const {
    return values[a] > values[b] || (values[a] == values[b] && a < b);
  }
};

std::int64_t in_units(float weight) { return static_cast<std::int64_t>(weight * kUnitsOfOne); }

}  // namespace

bool RowOptions::is_greedy() const { return !(temperature >= kGreedyBelow); }

// Philox-4x32-10 (Salmon et al., SC 2011); the seed is its key, the position its counter.
double uniform(std::uint64_t seed, std::uint64_t position) {
  auto c0 = static_cast<std::uint32_t>(position), c1 = static_cast<std::uint32_t>(position >> 32);
  std::uint32_t c2 = 0, c3 = 0;
  auto k0 = static_cast<std::uint32_t>(seed), k1 = static_cast<std::uint32_t>(seed >> 32);
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t left = 0xd2511f53ull * c0, right = 0xcd9e8d57ull * c2;
    c0 = static_cast<std::uint32_t>(right >> 32) ^ c1 ^ k0;
    c1 = static_cast<std::uint32_t>(right);
    c2 = static_cast<std::uint32_t>(left >> 32) ^ c3 ^ k1;
    c3 = static_cast<std::uint32_t>(left);
    k0 += 0x9e3779b9u;
    k1 += 0xbb67ae85u;
  }
  const std::uint64_t bits = (static_cast<std::uint64_t>(c0) << 32 | c1) >> 11;
  return static_cast<double>(bits) * 0x1p-53;
}

RowSampler::RowSampler(const PathKernels& kernels, std::size_t vocab_size)
    : kernels_(kernels),
      vocab_size_(vocab_size),
      adjusted_(vocab_size),
      weights_(vocab_size),
      ids_(vocab_size + 1),  // One more, as what is collected is written before it is counted.
      buckets_(vocab_size),
      kept_(vocab_size),
      counts_(vocab_size),
      counts_of_buckets_(kNumBuckets),
      masses_(kNumBuckets) {}

std::size_t RowSampler::num_bytes(std::size_t vocab_size) {
  constexpr std::size_t of_a_token =
      3 * sizeof(float) + 2 * sizeof(std::int32_t) + sizeof(Bucket);
  return vocab_size * of_a_token + kNumBuckets * (sizeof(std::uint32_t) + sizeof(std::int64_t));
}

SampledRow RowSampler::sample(const float* logits, const RowOptions& options,
                              std::int64_t* top_ids, float* top_logprobs) {
  SampledRow row;
  const RowExtremes raw = kernels_.find_extremes(logits, vocab_size_);
  RowExtremes found = raw;
  row.has_failed = !raw.all_finite;
  const float* values = logits;
  if (options.extras != nullptr) {
    adjust(logits, *options.extras);
    values = adjusted_.data();
    found = kernels_.find_extremes(values, vocab_size_);
    // What is forbidden is -inf; all of it, or another infinity, fails the row.
    if (found.has_nan || !(std::fabs(found.largest) < kInfinity)) row.has_failed = true;
  }
  row.token_id = static_cast<std::int32_t>(found.largest_id);
  if (row.has_failed) return row;
  if (!options.is_greedy()) {
    row.token_id = draw(
        {values, vocab_size_, found.largest, options.temperature, options.min_p}, options);
  }
  if (options.wants_logprobs) {
    find_logprobs({logits, vocab_size_, raw.largest, 1.0f, 0.0f}, options.num_logprobs, row,
                  top_ids, top_logprobs);
  }
  return row;
}

// adjusted_ = the logits after bias, forbidden ids and penalties, in this order.
void RowSampler::adjust(const float* logits, const RowExtras& extras) {
  std::copy_n(logits, vocab_size_, adjusted_.begin());
  for (std::size_t i = 0; i < extras.num_biases; ++i) {
    const auto id = static_cast<std::size_t>(extras.bias_ids[i]);
    if (id < vocab_size_) adjusted_[id] += extras.bias_values[i];
  }
  for (std::size_t i = 0; i < extras.num_forbidden; ++i) {
    const auto id = static_cast<std::size_t>(extras.forbidden_ids[i]);
    if (id < vocab_size_) adjusted_[id] = -kInfinity;
  }
  punish(extras);
}

// Each token once, however often it was said: counts_ remembers who was.
void RowSampler::punish(const RowExtras& extras) {
  const auto repetition = static_cast<float>(extras.repetition_penalty);
  if (extras.repetition_penalty != 1.0) {
    for (std::size_t i = 0; i < extras.history_length; ++i) {
      const auto id = static_cast<std::size_t>(extras.token_history[i]);
      if (counts_[id]++ > 0) continue;
      // Less likely on both sides of 0 (CTRL, arXiv 1909.05858, section 4.1).
      const float value = adjusted_[id];
      adjusted_[id] = value > 0 ? value / repetition : value * repetition;
    }
    for (std::size_t i = 0; i < extras.history_length; ++i) counts_[extras.token_history[i]] = 0;
  }
  if (extras.presence_penalty == 0.0 && extras.frequency_penalty == 0.0) return;
  const auto presence = static_cast<float>(extras.presence_penalty);
  const auto frequency = static_cast<float>(extras.frequency_penalty);
  for (std::size_t i = extras.prompt_length; i < extras.history_length; ++i) {
    ++counts_[extras.token_history[i]];
  }
  for (std::size_t i = extras.prompt_length; i < extras.history_length; ++i) {
    const auto id = static_cast<std::size_t>(extras.token_history[i]);
    if (counts_[id] == 0) continue;
    adjusted_[id] -= frequency * static_cast<float>(counts_[id]);
    adjusted_[id] -= presence;
    counts_[id] = 0;
  }
}

std::int32_t RowSampler::draw(const WeighCall& call, const RowOptions& options) {
  std::int64_t total = kernels_.weigh(call, weights_.data());
  const bool has_top_k =
      options.top_k > 0 && static_cast<std::size_t>(options.top_k) < vocab_size_;
  if (has_top_k || options.top_p < 1.0f) total = truncate(call, options, has_top_k, total);
  const double target = uniform(options.seed, options.position) * static_cast<double>(total);
  return static_cast<std::int32_t>(kernels_.find_in_cumulative(
      weights_.data(), vocab_size_, std::min(static_cast<std::int64_t>(target), total - 1)));
}

// Set all weights to 0 that top_k and then top_p leave out; give the sum of the others.
std::int64_t RowSampler::truncate(const WeighCall& call, const RowOptions& options, bool has_top_k,
                                  std::int64_t total) {
  kernels_.find_buckets(call, buckets_.data());
  // Kept are all before `border`, and the first of ids_, which are in it.
  std::size_t border = 0, num_kept = 0;
  std::size_t num_in_border = 0;
  if (has_top_k) {
    num_kept = find_top(call.values, static_cast<std::size_t>(options.top_k), border);
    num_in_border = num_kept;
  }
  if (options.top_p < 1.0f) {
    fill_masses();
    if (has_top_k) {
      total = std::accumulate(masses_.begin(), masses_.begin() + border, mass_of(0, num_kept));
    }
    const double goal = static_cast<double>(options.top_p) * static_cast<double>(total);
    std::int64_t mass_before = 0;
    std::size_t last = 0;
    // The bucket whose end has the goal, if not that where top_k ended.
    const std::size_t end = has_top_k ? border : kNumBuckets - 1;
    while (last < end && static_cast<double>(mass_before + masses_[last]) < goal) {
      mass_before += masses_[last++];
    }
    if (!has_top_k || last < border) {
      border = last;
      num_in_border = collect(border);
    }
    num_kept = length_within(call.values, num_in_border, mass_before, goal);
  }
  for (std::size_t i = 0; i < num_kept; ++i) kept_[i] = weights_[ids_[i]];
  kernels_.drop_from(buckets_.data(), vocab_size_, static_cast<Bucket>(border), weights_.data());
  for (std::size_t i = 0; i < num_kept; ++i) weights_[ids_[i]] = kept_[i];
  return kernels_.sum_weights(weights_.data(), vocab_size_);
}

// Find the likeliest `count` tokens: all in buckets before `border`, and in it the first of ids_, as
// many as are given.
std::size_t RowSampler::find_top(const float* values, std::size_t count, std::size_t& border) {
  std::fill(counts_of_buckets_.begin(), counts_of_buckets_.end(), 0u);
  for (const Bucket bucket : buckets_) ++counts_of_buckets_[bucket];
  border = 0;
  while (counts_of_buckets_[border] < count) count -= counts_of_buckets_[border++];
  const std::size_t candidates = collect(border);
  if (count < candidates) {
    std::nth_element(ids_.begin(), at(count), at(candidates), IsLikelier{values});
  }
  return count;
}

std::size_t RowSampler::collect(std::size_t bucket) {
  return kernels_.collect(buckets_.data(), vocab_size_, static_cast<Bucket>(bucket), ids_.data());
}

void RowSampler::fill_masses() {
  std::fill(masses_.begin(), masses_.end(), 0);
  for (std::size_t i = 0; i < vocab_size_; ++i) masses_[buckets_[i]] += in_units(weights_[i]);
}

// Reorder the first `candidates` of ids_, so that those before whom, in order, lies less than `goal`,
// with `mass_before` before all of them, are the first; give how many. Halves the part in question
// each time: no sort.
std::size_t RowSampler::length_within(const float* values, std::size_t candidates,
                                      std::int64_t mass_before, double goal) {
  if (candidates == 0 || static_cast<double>(mass_before) >= goal) return 0;
  std::size_t known = 0, last = candidates;  // The first `known` + 1 are in, those from `last` out.
  while (last - known > 1) {
    const std::size_t middle = known + (last - known) / 2;
    std::nth_element(at(known), at(middle), at(last), IsLikelier{values});
    const std::int64_t mass = mass_before + mass_of(known, middle);
    if (static_cast<double>(mass) >= goal) {
      last = middle;
    } else {
      known = middle;
      mass_before = mass;
    }
  }
  return last;
}

std::int64_t RowSampler::mass_of(std::size_t first, std::size_t last) const {
  std::int64_t mass = 0;
  for (std::size_t i = first; i < last; ++i) mass += in_units(weights_[ids_[i]]);
  return mass;
}

std::vector<std::int32_t>::iterator RowSampler::at(std::size_t index) {
  return ids_.begin() + static_cast<std::ptrdiff_t>(index);
}

// Of the raw logits, whose weights at temperature 1 `call` describes.
void RowSampler::find_logprobs(const WeighCall& call, std::size_t num_top, SampledRow& row,
                               std::int64_t* top_ids, float* top_logprobs) {
  const auto total = static_cast<double>(kernels_.weigh(call, weights_.data()));
  const auto log_total = static_cast<float>(std::log(total * kUnit));
  const auto logprob_of = [&](std::size_t id) {
    return call.values[id] - call.largest - log_total;
  };
  const auto token_id = static_cast<std::size_t>(row.token_id);
  row.logprob = logprob_of(token_id);
  row.rank = 1 + std::count_if(call.values, call.values + vocab_size_,
                               [&](float value) { return value > call.values[token_id]; });
  num_top = std::min(num_top, vocab_size_);
  if (num_top == 0) return;
  kernels_.find_buckets(call, buckets_.data());
  std::size_t border = 0;
  std::size_t found = find_top(call.values, num_top, border);
  for (std::size_t bucket = 0; bucket < border; ++bucket) {
    if (counts_of_buckets_[bucket] == 0) continue;
    found += kernels_.collect(buckets_.data(), vocab_size_, static_cast<Bucket>(bucket),
                              ids_.data() + found);
  }
  std::sort(ids_.begin(), at(num_top), IsLikelier{call.values});
  for (std::size_t i = 0; i < num_top; ++i) {
    top_ids[i] = ids_[i];
    top_logprobs[i] = logprob_of(static_cast<std::size_t>(ids_[i]));
  }
}

}  // namespace everbatch
