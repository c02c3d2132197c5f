#include "bindings_sampling.hpp"

#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/vector.h>

#include <numeric>

namespace nb = nanobind;
using namespace nb::literals;

namespace everbatch {
namespace {

void check_ids(const std::int64_t* ids, std::size_t count, std::size_t limit, const char* name) {
  for (std::size_t i = 0; i < count; ++i) {
    require(ids[i] >= 0 && static_cast<std::size_t>(ids[i]) < limit,
            std::string(name) + " holds " + std::to_string(ids[i]) + ", it must lie in [0, " +
                std::to_string(limit) + ")");
  }
}

// Sampling of given logits, for tests: [.., vocab].
void sample(Runtime& runtime, const FloatMatrix& logits, const Int32s& logits_of,
            const BoundRows& rows, SampledArrays arrays) {
  const std::size_t vocab_size = logits.shape(1);
  require(vocab_size > 0, "there is no token to choose");
  require_aligned(logits);
  rows.check(logits_of, logits.shape(0), vocab_size);
  std::vector<std::size_t> place(logits.shape(0));
  std::iota(place.begin(), place.end(), 0);
  std::vector<std::size_t> all(logits_of.size());
  std::iota(all.begin(), all.end(), 0);
  std::vector<RowSampler> samplers;
  arrays.require_apart_from(logits, "logits");
  rows.fill(arrays, logits_of, vocab_size, [&](const SamplingCall& call) {
    sample_rows(runtime, call, all, place, 0, logits.data(), vocab_size, samplers);
  });
}

}  // namespace

BoundExtras::BoundExtras(Int64s history, std::size_t prompt_length, double repetition_penalty,
                         double presence_penalty, double frequency_penalty, Int64s biased,
                         Floats biases, Int64s forbidden)
    : token_history(std::move(history)),
      bias_ids(std::move(biased)),
      bias_values(std::move(biases)),
      forbidden_ids(std::move(forbidden)),
      extras{token_history.data(), token_history.size(), prompt_length,
             repetition_penalty,   presence_penalty,     frequency_penalty,
             bias_ids.data(),      bias_values.data(),   bias_ids.size(),
             forbidden_ids.data(), forbidden_ids.size()} {
  require_aligned(token_history, bias_ids, bias_values, forbidden_ids);
  require(prompt_length <= token_history.size(), "prompt_length is beyond token_history");
  require(bias_values.size() == bias_ids.size(), "bias_ids and bias_values differ in size");
  // Ids beyond the vocabulary name no logit; numpy would count negative ones from the end.
  check_ids(bias_ids.data(), bias_ids.size(), SIZE_MAX, "bias_ids");
  check_ids(forbidden_ids.data(), forbidden_ids.size(), SIZE_MAX, "forbidden_ids");
}

BoundRows::BoundRows(const Floats& temperature, const Int32s& top_k, const Floats& top_p,
                     const Floats& min_p, const Array<const std::uint64_t, 1>& seed,
                     const Int64s& position, const Array<const bool, 1>& wants_logprobs,
                     const Int32s& num_logprobs, ByRow extras)
    : extras_(std::move(extras)) {
  const std::size_t num_rows = temperature.size();
  require_aligned(temperature, top_k, top_p, min_p, seed, position, wants_logprobs, num_logprobs);
  for (const std::size_t size : {top_k.size(), top_p.size(), min_p.size(), seed.size(),
                                 position.size(), wants_logprobs.size(), num_logprobs.size()}) {
    require(size == num_rows, "the arrays of rows to sample differ in size");
  }
  options_.reserve(num_rows);
  // An array of bool may hold any byte, a bool of C++ may not.
  const auto* wants = reinterpret_cast<const unsigned char*>(wants_logprobs.data());
  for (std::size_t i = 0; i < num_rows; ++i) {
    require(num_logprobs.data()[i] >= 0, "num_logprobs is negative");
    options_.push_back({temperature.data()[i], top_k.data()[i], top_p.data()[i], min_p.data()[i],
                        seed.data()[i], static_cast<std::uint64_t>(position.data()[i]),
                        wants[i] != 0,
                        static_cast<std::size_t>(num_logprobs.data()[i]), nullptr});
  }
  for (const auto& [row, of_row] : extras_) {
    require(row < num_rows && of_row != nullptr, "extras of a row that is not there");
    options_[row].extras = &of_row->extras;
  }
}

void BoundRows::check(const Int32s& logits_of, std::size_t num_logit_rows,
                      std::size_t vocab_size) const {
  require_aligned(logits_of);
  require(logits_of.size() == options_.size(), "logits_of has not one entry a row to sample");
  for (std::size_t i = 0; i < logits_of.size(); ++i) {
    const std::int32_t row = logits_of.data()[i];
    require(row >= 0 && static_cast<std::size_t>(row) < num_logit_rows,
            "logits_of holds " + std::to_string(row) + ", there are " +
                std::to_string(num_logit_rows) + " rows of logits");
  }
  for (const auto& [row, of_row] : extras_) {
    check_ids(of_row->extras.token_history, of_row->extras.history_length, vocab_size,
              "token_history");
  }
}

void BoundRows::fill(SampledArrays& arrays, const Int32s& logits_of, std::size_t vocab_size,
                     const std::function<void(const SamplingCall&)>& sample) const {
  const std::size_t num_rows = options_.size(), top_stride = arrays.top_ids.shape(1);
  require_aligned(arrays.token_ids, arrays.failed, arrays.logprobs, arrays.ranks, arrays.top_ids,
                  arrays.top_logprobs);
  for (const std::size_t size :
       {arrays.token_ids.size(), arrays.failed.size(), arrays.logprobs.size(), arrays.ranks.size(),
        arrays.top_ids.shape(0), arrays.top_logprobs.shape(0)}) {
    require(size == num_rows, "the arrays for results have not one entry a row to sample");
  }
  require(arrays.top_logprobs.shape(1) == top_stride, "top_ids and top_logprobs differ in size");
  // What is written while rows are sampled must not change what is read: these are indices.
  for (const auto& [row, of_row] : extras_) {
    arrays.require_apart_from(of_row->token_history, "token_history");
    arrays.require_apart_from(of_row->bias_ids, "bias_ids");
    arrays.require_apart_from(of_row->bias_values, "bias_values");
    arrays.require_apart_from(of_row->forbidden_ids, "forbidden_ids");
  }
  for (const RowOptions& options : options_) {
    require(!options.wants_logprobs || std::min(options.num_logprobs, vocab_size) <= top_stride,
            "top_ids has no room for num_logprobs");
  }
  const auto which = copied<std::int32_t>(logits_of);
  std::vector<SampledRow> rows(num_rows);
  {
    nb::gil_scoped_release unlocked;
    sample({which, options_, rows.data(), arrays.top_ids.data(), arrays.top_logprobs.data(),
            top_stride});
  }
  for (std::size_t i = 0; i < num_rows; ++i) {
    arrays.token_ids.data()[i] = rows[i].token_id;
    arrays.failed.data()[i] = rows[i].has_failed;
    arrays.logprobs.data()[i] = rows[i].logprob;
    arrays.ranks.data()[i] = rows[i].rank;
  }
}

void bind_sampling(nb::module_& module) {
  nb::class_<BoundExtras>(module, "RowExtras")
      .def(nb::init<Int64s, std::size_t, double, double, double, Int64s, Floats, Int64s>(),
           "token_history"_a.noconvert(), "prompt_length"_a, "repetition_penalty"_a,
           "presence_penalty"_a, "frequency_penalty"_a, "bias_ids"_a.noconvert(),
           "bias_values"_a.noconvert(), "forbidden_ids"_a.noconvert());

  nb::class_<BoundRows>(module, "SamplingRows")
      .def(nb::init<const Floats&, const Int32s&, const Floats&, const Floats&,
                    const Array<const std::uint64_t, 1>&, const Int64s&,
                    const Array<const bool, 1>&, const Int32s&, BoundRows::ByRow>(),
           "temperature"_a.noconvert(), "top_k"_a.noconvert(), "top_p"_a.noconvert(),
           "min_p"_a.noconvert(), "seed"_a.noconvert(), "position"_a.noconvert(),
           "wants_logprobs"_a.noconvert(), "num_logprobs"_a.noconvert(), "extras"_a);

  nb::class_<SampledArrays>(module, "SampledArrays")
      .def(nb::init<Array<std::int32_t, 1>, Array<bool, 1>, Array<float, 1>,
                    Array<std::int64_t, 1>, Array<std::int64_t, 2>, Array<float, 2>>(),
           "token_ids"_a.noconvert(), "failed"_a.noconvert(), "logprobs"_a.noconvert(),
           "ranks"_a.noconvert(), "top_ids"_a.noconvert(), "top_logprobs"_a.noconvert());

  module.def("uniform", &uniform, "seed"_a, "position"_a);
  module.def("sample", &sample, "runtime"_a, "logits"_a.noconvert(), "logits_of"_a.noconvert(),
             "rows"_a, "out"_a);
}

}  // namespace everbatch
