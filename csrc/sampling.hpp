// From a row of logits to a token: the same tokens, and the same bits of logprobs, as
// src/everbatch/kernels/sampling.py, which is the specification.
//
// What runs along the vocabulary is compiled for each path (sampling_rows.cpp); what looks at few
// tokens is in sampling.cpp.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels.hpp"

namespace everbatch {

// What few rows ask for. Ids of the history lie in the vocabulary; others beyond it name no logit.
struct RowExtras {
  const std::int64_t* token_history;  // prompt and outputs so far
  std::size_t history_length;
  std::size_t prompt_length;  // at most history_length
  double repetition_penalty;
  double presence_penalty;
  double frequency_penalty;
  const std::int64_t* bias_ids;
  const float* bias_values;
  std::size_t num_biases;
  const std::int64_t* forbidden_ids;
  std::size_t num_forbidden;
};

struct RowOptions {
  float temperature;
  std::int32_t top_k;  // 0: off
  float top_p;         // 1: off
  float min_p;         // 0: off
  std::uint64_t seed;
  std::uint64_t position;
  bool wants_logprobs;
  std::size_t num_logprobs;
  const RowExtras* extras;  // or null

  bool is_greedy() const;
  // Whether its token is the largest of its logits, and they are wanted for nothing else.
  bool is_plain() const { return is_greedy() && !wants_logprobs && extras == nullptr; }
};

struct SampledRow {
  std::int32_t token_id = 0;
  bool has_failed = false;
  float logprob = 0.0f;
  std::int64_t rank = 0;
};

// One number in [0, 1), a multiple of 2 ** -53; random_numbers.py says which.
double uniform(std::uint64_t seed, std::uint64_t position);

// Samples one row after the other; holds the memory that one thread needs for it.
class RowSampler {
 public:
  RowSampler(const PathKernels& kernels, std::size_t vocab_size);

  // Of the memory of one.
  static std::size_t num_bytes(std::size_t vocab_size);

  // logits: [vocab], left as they are. top_ids, top_logprobs: min(num_logprobs, vocab) of each are
  // written where logprobs are wanted and the row has not failed.
  SampledRow sample(const float* logits, const RowOptions& options, std::int64_t* top_ids,
                    float* top_logprobs);

 private:
  void adjust(const float* logits, const RowExtras& extras);
  void punish(const RowExtras& extras);
  std::int32_t draw(const WeighCall& call, const RowOptions& options);
  std::int64_t truncate(const WeighCall& call, const RowOptions& options, bool has_top_k,
                        std::int64_t total);
  std::size_t find_top(const float* values, std::size_t count, std::size_t& border);
  std::size_t collect(std::size_t bucket);
  void fill_masses();
  std::size_t length_within(const float* values, std::size_t candidates, std::int64_t mass_before,
                            double goal);
  std::vector<std::int32_t>::iterator at(std::size_t index);
  std::int64_t mass_of(std::size_t first, std::size_t last) const;
  void find_logprobs(const WeighCall& call, std::size_t num_top, SampledRow& row,
                     std::int64_t* top_ids, float* top_logprobs);

  const PathKernels& kernels_;
  std::size_t vocab_size_;
  // [vocab] each, so that nothing is allocated while threads work.
  std::vector<float> adjusted_;
  std::vector<float> weights_;
  std::vector<std::int32_t> ids_;
  std::vector<Bucket> buckets_;
  std::vector<float> kept_;
  std::vector<std::int32_t> counts_;  // zero between two rows
  // Of tokens and of weights, by bucket.
  std::vector<std::uint32_t> counts_of_buckets_;
  std::vector<std::int64_t> masses_;
};

}  // namespace everbatch
