// Rows to sample as Python hands them over, and the arrays that take what comes of them.
#pragma once

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "bindings.hpp"
#include "network.hpp"

namespace everbatch {

// RowExtras of sampling.py, and the arrays that it looks into.
struct BoundExtras {
  BoundExtras(Int64s token_history, std::size_t prompt_length, double repetition_penalty,
              double presence_penalty, double frequency_penalty, Int64s bias_ids,
              Floats bias_values, Int64s forbidden_ids);

  Int64s token_history;
  Int64s bias_ids;
  Floats bias_values;
  Int64s forbidden_ids;
  RowExtras extras;
};

// Where results go: arrays of [R] and, for the likeliest tokens, [R, K].
struct SampledArrays {
  Array<std::int32_t, 1> token_ids;
  Array<bool, 1> failed;
  Array<float, 1> logprobs;
  Array<std::int64_t, 1> ranks;
  Array<std::int64_t, 2> top_ids;
  Array<float, 2> top_logprobs;

  // std::invalid_argument where what is read lies in what is written.
  template <typename Source>
  void require_apart_from(const Source& source, const std::string& name) const {
    require_apart(source, token_ids, name + " and token_ids");
    require_apart(source, failed, name + " and failed");
    require_apart(source, logprobs, name + " and logprobs");
    require_apart(source, ranks, name + " and ranks");
    require_apart(source, top_ids, name + " and top_ids");
    require_apart(source, top_logprobs, name + " and top_logprobs");
  }
};

// SamplingRows of sampling.py.
class BoundRows {
 public:
  using ByRow = std::vector<std::pair<std::size_t, std::shared_ptr<BoundExtras>>>;

  BoundRows(const Floats& temperature, const Int32s& top_k, const Floats& top_p,
            const Floats& min_p, const Array<const std::uint64_t, 1>& seed, const Int64s& position,
            const Array<const bool, 1>& wants_logprobs, const Int32s& num_logprobs, ByRow extras);

  // std::invalid_argument where the rows do not fit so many rows of logits of this vocabulary.
  void check(const Int32s& logits_of, std::size_t num_logit_rows, std::size_t vocab_size) const;
  // Let `sample` fill the arrays, without Python's lock.
  void fill(SampledArrays& arrays, const Int32s& logits_of, std::size_t vocab_size,
            const std::function<void(const SamplingCall&)>& sample) const;

 private:
  std::vector<RowOptions> options_;
  ByRow extras_;
};

void bind_sampling(nanobind::module_& module);

}  // namespace everbatch
