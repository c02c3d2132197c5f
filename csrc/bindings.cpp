// The module everbatch.kernels._native, and with bindings_sampling.cpp all that knows Python.
//
// Arrays come as numpy buffers of exact type and layout: anything else is a TypeError of nanobind.
// Sizes, indices and overlaps are checked here or in what is called from here, and raise ValueError:
// no input crashes. Python's lock is released while kernels run.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <optional>
#include <stdexcept>
#include <string>
#include <system_error>
#include <utility>

#include "bindings.hpp"
#include "bindings_sampling.hpp"
#include "network.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace everbatch {
namespace {

using KvArray = Array<Bf16, 5>;

std::vector<float> copied_or_empty(const std::optional<Floats>& array) {
  return array ? copied<float>(*array) : std::vector<float>();
}

// Each by the name that leaves it out.
constexpr std::pair<const char*, bool Optimisations::*> kOptimisations[] = {
    {"huge-pages", &Optimisations::has_huge_pages},
    {"kv-ahead", &Optimisations::has_kv_ahead},
    {"own-pieces", &Optimisations::has_own_pieces},
};

std::vector<std::string> optimisations() {
  std::vector<std::string> names;
  for (const auto& [name, has] : kOptimisations) names.push_back(name);
  return names;
}

std::vector<std::string> left_out(const Runtime& runtime) {
  std::vector<std::string> names;
  for (const auto& [name, has] : kOptimisations) {
    if (!(runtime.optimisations.*has)) names.push_back(name);
  }
  return names;
}

Optimisations all_but(const std::vector<std::string>& names) {
  Optimisations wanted;
  for (const std::string& name : names) {
    const auto* found = std::find_if(std::begin(kOptimisations), std::end(kOptimisations),
                                     [&](const auto& known) { return known.first == name; });
    require(found != std::end(kOptimisations), "there is no optimisation '" + name + "'");
    wanted.*found->second = false;
  }
  return wanted;
}

std::shared_ptr<Runtime> make_runtime(int num_threads, const std::optional<std::string>& path,
                                      const std::optional<std::vector<int>>& cpus,
                                      const std::vector<std::string>& without) {
  require(num_threads >= 1 && num_threads <= ThreadPool::kMaxThreads,
          "num_threads must lie in [1, " + std::to_string(ThreadPool::kMaxThreads) + "], got " +
              std::to_string(num_threads));
  require(!cpus || cpus->size() == static_cast<std::size_t>(num_threads),
          "there must be one CPU for each thread");
  try {
    return std::make_shared<Runtime>(num_threads, path.value_or(available_paths().front()),
                                     cpus.value_or(std::vector<int>()), all_but(without));
  } catch (const std::system_error& error) {
    const std::string wish = cpus ? " threads on these CPUs (" : " threads (";
    throw std::invalid_argument("the system does not give " + std::to_string(num_threads) + wish +
                                error.what() + "): take " + (cpus ? "others" : "fewer"));
  }
}

std::shared_ptr<PackedMatrix> make_matrix(Runtime& runtime, const std::vector<FloatMatrix>& parts,
                                          const std::optional<std::vector<Floats>>& biases,
                                          bool interleaved) {
  require(!parts.empty(), "a matrix needs one part at least");
  require(!biases || biases->size() == parts.size(), "there must be one bias for each part");
  require(!interleaved || (parts.size() == 2 && parts[0].shape(0) == parts[1].shape(0)),
          "an interleaved matrix needs two parts of one size");
  std::vector<MatrixPart> sources;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    require_aligned(parts[i]);
    require(parts[i].shape(0) > 0 && parts[i].shape(1) > 0, "a part of a matrix is empty");
    require(parts[i].shape(1) == parts[0].shape(1), "the parts differ in their inputs");
    const float* bias = nullptr;
    if (biases) {
      require_aligned((*biases)[i]);
      require((*biases)[i].size() == parts[i].shape(0), "a bias does not fit its part");
      bias = (*biases)[i].data();
    }
    sources.push_back({parts[i].data(), parts[i].shape(0), parts[i].shape(1), bias});
  }
  const auto arrangement = interleaved ? Arrangement::kInterleaved : Arrangement::kStacked;
  nb::gil_scoped_release unlocked;
  return std::make_shared<PackedMatrix>(runtime, sources, arrangement);
}

// x as products need it: padded to an even count of inputs.
struct PaddedInput {
  PaddedInput(const PackedMatrix& matrix, const Array<const Bf16, 2>& x)
      : stride(round_up(matrix.num_inputs(), 2)) {
    require(x.shape(1) == matrix.num_inputs(),
            "x has " + std::to_string(x.shape(1)) + " columns, the matrix takes " +
                std::to_string(matrix.num_inputs()));
    if (stride == x.shape(1)) {
      values = x.data();
      return;
    }
    copy = AlignedBuffer<Bf16>(x.shape(0) * stride);
    for (std::size_t row = 0; row < x.shape(0); ++row) {
      std::copy_n(x.data() + row * x.shape(1), x.shape(1), copy.data() + row * stride);
    }
    values = copy.data();
  }

  std::size_t stride;
  AlignedBuffer<Bf16> copy;
  const Bf16* values;
};

void multiply(const PackedMatrix& matrix, Runtime& runtime, const Array<const Bf16, 2>& x,
              const Array<float, 2>& out) {
  require_aligned(x, out);
  require(matrix.arrangement() == Arrangement::kStacked, "the matrix is interleaved");
  require(out.shape(0) == x.shape(0) && out.shape(1) == matrix.num_outputs(),
          "out has a wrong shape");
  require_apart(x, out, "x and out");
  const PaddedInput input(matrix, x);
  nb::gil_scoped_release unlocked;
  matrix.multiply(runtime, input.values, input.stride, x.shape(0), out.data(), out.shape(1), false);
}

void silu_times(const PackedMatrix& matrix, Runtime& runtime, const Array<const Bf16, 2>& x,
                const Array<Bf16, 2>& out) {
  require_aligned(x, out);
  require(matrix.arrangement() == Arrangement::kInterleaved, "the matrix is not interleaved");
  require(out.shape(0) == x.shape(0) && 2 * out.shape(1) == matrix.num_outputs(),
          "out has a wrong shape");
  require_apart(x, out, "x and out");
  const PaddedInput input(matrix, x);
  nb::gil_scoped_release unlocked;
  matrix.silu_times(runtime, input.values, input.stride, x.shape(0), out.data(), out.shape(1));
}

Batch make_batch(const Int32s& input_ids, const Int32s& positions, const Int32s& cu_seqlens_q,
                 const Int32s& context_lens, const Int32Matrix& block_tables,
                 const Int32s& slot_mapping, const Int32s& logit_rows) {
  require(block_tables.shape(0) == context_lens.size(), "block_tables has not one row a context");
  return {copied<std::int32_t>(input_ids),    copied<std::int32_t>(positions),
          copied<std::int32_t>(cu_seqlens_q), copied<std::int32_t>(context_lens),
          copied<std::int32_t>(block_tables), copied<std::int32_t>(slot_mapping),
          copied<std::int32_t>(logit_rows)};
}

// Attention alone, for tests and benchmarks: one layer, queries and out [T, H, D].
void attention(Runtime& runtime, const Array<const Bf16, 3>& queries,
               const Array<const Bf16, 4>& keys, const Array<const Bf16, 4>& values,
               const Int32s& cu_seqlens_q, const Int32s& context_lens,
               const Int32Matrix& block_tables, const Array<Bf16, 3>& out) {
  const std::size_t num_tokens = queries.shape(0), num_heads = queries.shape(1);
  const std::size_t head_dim = queries.shape(2), num_kv_heads = keys.shape(2);
  require_aligned(queries, keys, values, cu_seqlens_q, context_lens, out);
  for (int i = 0; i < 4; ++i) {
    require(keys.shape(i) == values.shape(i), "keys and values differ in shape");
  }
  for (int i = 0; i < 3; ++i) {
    require(queries.shape(i) == out.shape(i), "queries and out differ in shape");
  }
  require(keys.shape(3) == head_dim && head_dim > 0 && head_dim % 2 == 0,
          "head_dim must be even, and the same everywhere");
  require(num_kv_heads > 0 && num_heads > 0 && num_heads % num_kv_heads == 0,
          "query heads must be a multiple of key-value heads");
  require(keys.shape(1) > 0, "a block holds no position");
  require_apart(queries, out, "queries and out");
  require_apart(keys, out, "keys and out");
  require_apart(values, out, "values and out");
  require(block_tables.shape(0) == context_lens.size(), "block_tables has not one row a context");
  require(cu_seqlens_q.size() == context_lens.size() + 1, "cu_seqlens_q has a wrong size");
  Batch batch;
  batch.input_ids.resize(num_tokens);
  batch.slot_mapping.resize(num_tokens);
  batch.positions.resize(num_tokens);
  batch.cu_seqlens_q = copied<std::int32_t>(cu_seqlens_q);
  batch.context_lens = copied<std::int32_t>(context_lens);
  batch.block_tables = copied<std::int32_t>(block_tables);
  for (std::size_t row = 0; row < batch.num_rows(); ++row) {
    // What leads outside is left to the check.
    const auto last = std::min<std::int64_t>(cu_seqlens_q.data()[row + 1],
                                             static_cast<std::int64_t>(num_tokens));
    for (std::int64_t token = std::max(cu_seqlens_q.data()[row], 0); token < last; ++token) {
      batch.positions[static_cast<std::size_t>(token)] = static_cast<std::int32_t>(
          context_lens.data()[row] - cu_seqlens_q.data()[row + 1] + token);
    }
  }
  batch.check(1, keys.shape(0), keys.shape(1));
  const AttentionCall call{
      .queries = queries.data(),
      .keys = keys.data(),
      .values = values.data(),
      .num_heads = num_heads,
      .num_kv_heads = num_kv_heads,
      .head_dim = head_dim,
      .block_size = keys.shape(1),
      .scale = 1.0f / std::sqrt(static_cast<float>(head_dim)),
      .out = out.data(),
      .out_stride = num_heads * head_dim,
  };
  nb::gil_scoped_release unlocked;
  AlignedBuffer<std::byte> scratch;
  paged_attention(runtime, call, batch, scratch);
}

Layer make_layer(const Floats& attention_norm, std::shared_ptr<PackedMatrix> qkv,
                 const std::optional<Floats>& q_norm, const std::optional<Floats>& k_norm,
                 std::shared_ptr<PackedMatrix> o, const Floats& mlp_norm,
                 std::shared_ptr<PackedMatrix> gate_up, std::shared_ptr<PackedMatrix> down) {
  return {copied<float>(attention_norm), std::move(qkv), copied_or_empty(q_norm),
          copied_or_empty(k_norm),       std::move(o),   copied<float>(mlp_norm),
          std::move(gate_up),            std::move(down)};
}

std::shared_ptr<Network> make_network(
    std::shared_ptr<Runtime> runtime, std::size_t hidden_size, std::size_t intermediate_size,
    std::size_t vocab_size, std::size_t num_heads, std::size_t num_kv_heads, std::size_t head_dim,
    float rms_norm_eps, const std::vector<Layer>& layers, std::shared_ptr<PackedMatrix> embedding,
    std::optional<std::shared_ptr<PackedMatrix>> lm_head, const Floats& final_norm,
    const Floats& inverse_frequencies, float rotary_scale) {
  const NetworkShape shape{layers.size(), hidden_size,  intermediate_size, vocab_size,
                           num_heads,     num_kv_heads, head_dim,          rms_norm_eps};
  return std::make_shared<Network>(std::move(runtime), shape, layers, std::move(embedding),
                                   lm_head.value_or(nullptr), copied<float>(final_norm),
                                   copied<float>(inverse_frequencies), rotary_scale);
}

// A step, and the arrays that it reads and writes.
struct BoundStep {
  BoundStep(std::shared_ptr<Network> network, const Int32s& input_ids, const Int32s& positions,
            const Int32s& cu_seqlens_q, const Int32s& context_lens,
            const Int32Matrix& block_tables, const Int32s& slot_mapping, const Int32s& logit_rows,
            KvArray keys, KvArray values)
      : keys(checked(std::move(keys), network->shape(), "keys")),
        values(checked(std::move(values), network->shape(), "values")),
        step(std::move(network),
             make_batch(input_ids, positions, cu_seqlens_q, context_lens, block_tables,
                        slot_mapping, logit_rows),
             view()) {}

  static KvArray checked(KvArray array, const NetworkShape& shape, const std::string& name) {
    require(array.shape(0) == shape.num_layers && array.shape(3) == shape.num_kv_heads &&
                array.shape(4) == shape.head_dim && array.shape(1) > 0 && array.shape(2) > 0,
            name + " must be [L, num_blocks, block_size, H_kv, D] of this network");
    require_aligned(array);
    return array;
  }

  KvView view() {
    require(keys.shape(1) == values.shape(1) && keys.shape(2) == values.shape(2),
            "keys and values differ in shape");
    require_apart(keys, values, "keys and values");
    return {keys.data(), values.data(), keys.shape(1), keys.shape(2)};
  }

  void norm_logits(const Array<float, 2>& logits) {
    require(logits.shape(0) == step.num_logit_rows() &&
                logits.shape(1) == step.shape().vocab_size,
            "logits has a wrong shape");
    require_aligned(logits);
    require_apart(logits, keys, "logits and keys");
    require_apart(logits, values, "logits and values");
    nb::gil_scoped_release unlocked;
    step.norm_logits(logits.data());
  }

  void run(const std::vector<std::pair<Operation, std::size_t>>& operations) {
    nb::gil_scoped_release unlocked;
    step.run(operations);
  }

  void norm_sample(const Int32s& logits_of, const BoundRows& rows, SampledArrays arrays) {
    rows.check(logits_of, step.num_logit_rows(), step.shape().vocab_size);
    rows.fill(arrays, logits_of, step.shape().vocab_size,
              [&](const SamplingCall& call) { step.norm_sample(call); });
  }

  KvArray keys;
  KvArray values;
  Step step;
};

}  // namespace
}  // namespace everbatch

NB_MODULE(_native, module) {
  using namespace everbatch;

  module.def("available_paths", &available_paths);
  module.def("optimisations", &optimisations);
  module.def("attention", &attention, "runtime"_a, "queries"_a.noconvert(), "keys"_a.noconvert(),
             "values"_a.noconvert(), "cu_seqlens_q"_a.noconvert(), "context_lens"_a.noconvert(),
             "block_tables"_a.noconvert(), "out"_a.noconvert());

  nb::class_<Runtime>(module, "Runtime")
      .def(nb::new_(&make_runtime), "num_threads"_a, "path"_a = nb::none(), "cpus"_a = nb::none(),
           "without"_a = std::vector<std::string>())
      .def_prop_ro("num_threads", [](const Runtime& self) { return self.pool.num_threads(); })
      .def_prop_ro("cpus", [](const Runtime& self) { return self.pool.cpus(); })
      .def_prop_ro("without", &left_out)
      .def_prop_ro("path", [](const Runtime& self) { return self.path_name; });

  nb::class_<PackedMatrix>(module, "Matrix")
      .def(nb::new_(&make_matrix), "runtime"_a, "parts"_a.noconvert(),
           "biases"_a.noconvert() = nb::none(), "interleaved"_a = false)
      .def("multiply", &multiply, "runtime"_a, "x"_a.noconvert(), "out"_a.noconvert())
      .def("silu_times", &silu_times, "runtime"_a, "x"_a.noconvert(), "out"_a.noconvert())
      .def_prop_ro("num_bytes", &PackedMatrix::num_bytes);

  nb::class_<Layer>(module, "Layer")
      .def(nb::new_(&make_layer), "attention_norm"_a.noconvert(), "qkv"_a,
           "q_norm"_a.noconvert().none(), "k_norm"_a.noconvert().none(), "o"_a,
           "mlp_norm"_a.noconvert(), "gate_up"_a, "down"_a);

  nb::class_<Network>(module, "Network")
      .def(nb::new_(&make_network), "runtime"_a, nb::kw_only(), "hidden_size"_a,
           "intermediate_size"_a, "vocab_size"_a, "num_heads"_a, "num_kv_heads"_a, "head_dim"_a,
           "rms_norm_eps"_a, "layers"_a, "embedding"_a, "lm_head"_a.none(),
           "final_norm"_a.noconvert(), "inverse_frequencies"_a.noconvert(), "rotary_scale"_a)
      .def_prop_ro("num_bytes", &Network::num_bytes)
      .def_prop_ro("workspace_bytes", &Network::workspace_bytes)
      .def("max_workspace_bytes", &Network::max_workspace_bytes, "num_tokens"_a, "context_len"_a);

  nb::enum_<Operation>(module, "Operation")
      .value("EMBED", Operation::kEmbed)
      .value("NORM_QKV_ROPE_WRITE", Operation::kNormQkvRopeWrite)
      .value("PAGED_ATTENTION", Operation::kPagedAttention)
      .value("PROJECT_ADD", Operation::kProjectAdd)
      .value("NORM_MLP_ADD", Operation::kNormMlpAdd);

  nb::class_<BoundStep>(module, "Step")
      .def(nb::init<std::shared_ptr<Network>, const Int32s&, const Int32s&, const Int32s&,
                    const Int32s&, const Int32Matrix&, const Int32s&, const Int32s&, KvArray,
                    KvArray>(),
           "network"_a, "input_ids"_a.noconvert(), "positions"_a.noconvert(),
           "cu_seqlens_q"_a.noconvert(), "context_lens"_a.noconvert(),
           "block_tables"_a.noconvert(), "slot_mapping"_a.noconvert(), "logit_rows"_a.noconvert(),
           "keys"_a.noconvert(), "values"_a.noconvert())
      .def("run", &BoundStep::run, "operations"_a)
      .def("norm_logits", &BoundStep::norm_logits, "logits"_a.noconvert())
      .def("norm_sample", &BoundStep::norm_sample, "logits_of"_a.noconvert(), "rows"_a, "out"_a);

  bind_sampling(module);
}
