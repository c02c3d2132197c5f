#include "network.hpp"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string>

namespace everbatch {
namespace {

// Columns of intermediate results are padded to whole cache lines of bf16.
constexpr std::size_t kPadding = 32;
// Work on single tokens is shared in pieces of so many values; a smaller batch is not shared at all,
// as waking a thread costs a microsecond.
constexpr std::size_t kValuesPerPiece = 8192;
constexpr std::size_t kMinSharedValues = 16384;
// Rows of logits that are there at once, of those that need them: a bound on memory.
constexpr std::size_t kLogitRows = 96;
// Angles are made for so many positions at a time.
constexpr std::size_t kPositionsAtOnce = 1024;

std::size_t padded(std::size_t columns) { return round_up(columns, kPadding); }

std::size_t tokens_of_a_piece(std::size_t num_tokens, std::size_t values_per_token) {
  if (num_tokens * values_per_token < kMinSharedValues) return std::max<std::size_t>(num_tokens, 1);
  return std::max<std::size_t>(kValuesPerPiece / values_per_token, 1);
}

void check_matrix(const std::shared_ptr<const PackedMatrix>& matrix, std::size_t num_outputs,
                  std::size_t num_inputs, Arrangement arrangement, const std::string& name) {
  if (matrix == nullptr) throw std::invalid_argument(name + " is missing");
  if (matrix->num_outputs() != num_outputs || matrix->num_inputs() != num_inputs) {
    throw std::invalid_argument(name + " is [" + std::to_string(matrix->num_outputs()) + ", " +
                                std::to_string(matrix->num_inputs()) + "], expected [" +
                                std::to_string(num_outputs) + ", " + std::to_string(num_inputs) +
                                "]");
  }
  if (matrix->arrangement() != arrangement) {
    throw std::invalid_argument(name + " is packed in the wrong arrangement");
  }
}

void check_vector(const std::vector<float>& values, std::size_t size, const std::string& name) {
  if (values.size() != size) {
    throw std::invalid_argument(name + " has " + std::to_string(values.size()) +
                                " values, expected " + std::to_string(size));
  }
}

}  // namespace

Network::Network(std::shared_ptr<Runtime> runtime, const NetworkShape& shape,
                 std::vector<Layer> layers, std::shared_ptr<const PackedMatrix> embedding,
                 std::shared_ptr<const PackedMatrix> lm_head, std::vector<float> final_norm,
                 std::vector<float> inverse_frequencies, float rotary_scale)
    : runtime_(std::move(runtime)),
      shape_(shape),
      layers_(std::move(layers)),
      embedding_(std::move(embedding)),
      lm_head_(lm_head != nullptr ? std::move(lm_head) : embedding_),
      final_norm_(std::move(final_norm)),
      inverse_frequencies_(std::move(inverse_frequencies)),
      rotary_scale_(rotary_scale) {
  check();
}

void Network::check() const {
  const NetworkShape& shape = shape_;
  if (shape.num_heads == 0 || shape.num_kv_heads == 0 || shape.num_heads % shape.num_kv_heads) {
    throw std::invalid_argument("num_heads must be a positive multiple of num_kv_heads");
  }
  // Products of sizes must not wrap around to what fits: head_dim is bounded by the frequencies.
  if (shape.num_heads > INT32_MAX) throw std::invalid_argument("num_heads is too large");
  if (shape.head_dim == 0 || shape.head_dim % 2) {
    throw std::invalid_argument("head_dim must be positive and even");
  }
  if (layers_.size() != shape.num_layers) {
    throw std::invalid_argument("expected " + std::to_string(shape.num_layers) + " layers, got " +
                                std::to_string(layers_.size()));
  }
  const auto stacked = Arrangement::kStacked;
  for (const Layer& layer : layers_) {
    check_vector(layer.attention_norm, shape.hidden_size, "attention_norm");
    check_vector(layer.mlp_norm, shape.hidden_size, "mlp_norm");
    if (!layer.q_norm.empty()) check_vector(layer.q_norm, shape.head_dim, "q_norm");
    if (!layer.k_norm.empty()) check_vector(layer.k_norm, shape.head_dim, "k_norm");
    check_matrix(layer.qkv, shape.qkv_size(), shape.hidden_size, stacked, "qkv");
    check_matrix(layer.o, shape.hidden_size, shape.query_size(), stacked, "o");
    check_matrix(layer.gate_up, 2 * shape.intermediate_size, shape.hidden_size,
                 Arrangement::kInterleaved, "gate_up");
    check_matrix(layer.down, shape.hidden_size, shape.intermediate_size, stacked, "down");
  }
  check_matrix(embedding_, shape.vocab_size, shape.hidden_size, stacked, "embedding");
  check_matrix(lm_head_, shape.vocab_size, shape.hidden_size, stacked, "lm_head");
  check_vector(final_norm_, shape.hidden_size, "final_norm");
  check_vector(inverse_frequencies_, shape.head_dim / 2, "inverse_frequencies");
}

std::size_t Network::num_bytes() const {
  std::size_t total = embedding_->num_bytes();
  if (lm_head_ != embedding_) total += lm_head_->num_bytes();
  for (const Layer& layer : layers_) {
    for (const auto& matrix : {layer.qkv, layer.o, layer.gate_up, layer.down}) {
      total += matrix->num_bytes();
    }
  }
  return total;
}

std::size_t Network::workspace_bytes() const {
  std::size_t total = hidden_.num_bytes() + normed_.num_bytes() + qkv_.num_bytes() +
                      queries_.num_bytes() + attended_.num_bytes() + gated_.num_bytes() +
                      attention_scratch_.num_bytes() + logits_.num_bytes() +
                      (cos_.capacity() + sin_.capacity()) * sizeof(float);
  return total + samplers_.size() * RowSampler::num_bytes(shape_.vocab_size);
}

std::size_t Network::max_workspace_bytes(std::size_t num_tokens, std::size_t context_len) const {
  const auto num_threads = static_cast<std::size_t>(runtime_->pool.num_threads());
  const std::size_t angles = round_up(context_len, kPositionsAtOnce) * (shape_.head_dim / 2);
  return bytes_of_rows(num_tokens) +
         max_attention_bytes(*runtime_, attention_call(), num_tokens, context_len) +
         std::min(num_tokens, kLogitRows) * shape_.vocab_size * sizeof(float) +
         2 * angles * sizeof(float) + num_threads * RowSampler::num_bytes(shape_.vocab_size);
}

// What make_room() takes.
std::size_t Network::bytes_of_rows(std::size_t num_tokens) const {
  const std::size_t hidden = padded(shape_.hidden_size), qkv = padded(shape_.qkv_size());
  const std::size_t bf16s = hidden + shape_.query_size() + padded(shape_.query_size()) +
                            padded(shape_.intermediate_size);
  return num_tokens * ((hidden + qkv) * sizeof(float) + bf16s * sizeof(Bf16));
}

void Network::make_room(std::size_t num_tokens) {
  hidden_.reserve(num_tokens * padded(shape_.hidden_size));
  normed_.reserve(num_tokens * padded(shape_.hidden_size));
  qkv_.reserve(num_tokens * padded(shape_.qkv_size()));
  queries_.reserve(num_tokens * shape_.query_size());
  attended_.reserve(num_tokens * padded(shape_.query_size()));
  gated_.reserve(num_tokens * padded(shape_.intermediate_size));
}

// The sizes of attention, without arrays.
AttentionCall Network::attention_call() const {
  return {
      .queries = nullptr,
      .keys = nullptr,
      .values = nullptr,
      .num_heads = shape_.num_heads,
      .num_kv_heads = shape_.num_kv_heads,
      .head_dim = shape_.head_dim,
      .block_size = 0,
      .scale = 1.0f / std::sqrt(static_cast<float>(shape_.head_dim)),
      .out = nullptr,
      .out_stride = padded(shape_.query_size()),
  };
}

// Angles are products in float32, as in the reference backend.
void Network::extend_rotation(std::size_t num_positions) {
  const std::size_t half = shape_.head_dim / 2;
  std::size_t position = cos_.size() / half;
  if (num_positions <= position) return;
  num_positions = round_up(num_positions, kPositionsAtOnce);
  cos_.reserve(num_positions * half);
  sin_.reserve(num_positions * half);
  for (; position < num_positions; ++position) {
    for (const float frequency : inverse_frequencies_) {
      const double angle = static_cast<float>(position) * frequency;
      cos_.push_back(static_cast<float>(std::cos(angle)) * rotary_scale_);
      sin_.push_back(static_cast<float>(std::sin(angle)) * rotary_scale_);
    }
  }
}

Step::Step(std::shared_ptr<Network> network, Batch batch, KvView kv)
    : network_(std::move(network)), batch_(std::move(batch)), kv_(kv) {
  batch_.check(network_->shape_.vocab_size, kv.num_blocks, kv.block_size);
  const std::lock_guard lock(network_->one_caller_);
  network_->make_room(batch_.num_tokens());
  const std::int32_t longest =
      *std::max_element(batch_.context_lens.begin(), batch_.context_lens.end());
  network_->extend_rotation(static_cast<std::size_t>(longest));
  number_ = ++network_->num_steps_;
}

std::unique_lock<std::mutex> Step::enter() const {
  std::unique_lock lock(network_->one_caller_);
  if (number_ != network_->num_steps_) {
    throw std::logic_error("a later step of this network has begun: this one has ended");
  }
  return lock;
}

const Layer& Step::layer_of(std::size_t layer) const {
  if (layer >= network_->layers_.size()) {
    throw std::invalid_argument("no layer " + std::to_string(layer) + ", the network has " +
                                std::to_string(network_->layers_.size()));
  }
  return network_->layers_[layer];
}

void Step::run(const std::vector<std::pair<Operation, std::size_t>>& operations) {
  const auto lock = enter();
  const ThreadPool::Caller pinned(network_->runtime_->pool);
  for (const auto& [operation, layer] : operations) {
    switch (operation) {
      case Operation::kEmbed:
        embed();
        break;
      case Operation::kNormQkvRopeWrite:
        norm_qkv_rope_write(layer);
        break;
      case Operation::kPagedAttention:
        paged_attention(layer);
        break;
      case Operation::kProjectAdd:
        project_add(layer);
        break;
      case Operation::kNormMlpAdd:
        norm_mlp_add(layer);
        break;
    }
  }
}

void Step::embed() {
  Network& network = *network_;
  const std::size_t size = network.shape_.hidden_size;
  const std::size_t step = tokens_of_a_piece(batch_.num_tokens(), size);
  network.runtime_->run_in_parts(batch_.num_tokens(), step, [&](Range tokens, int) {
    for (std::size_t token = tokens.first; token < tokens.last; ++token) {
      const auto id = static_cast<std::size_t>(batch_.input_ids[token]);
      network.embedding_->read_output(id, network.hidden_.data() + token * padded(size));
    }
  });
}

// normed = the norm of every token's hidden state.
void Step::norm_all(const std::vector<float>& weight) {
  Network& network = *network_;
  const std::size_t size = network.shape_.hidden_size, stride = padded(size);
  const std::size_t step = tokens_of_a_piece(batch_.num_tokens(), size);
  network.runtime_->run_in_parts(batch_.num_tokens(), step, [&](Range tokens, int) {
    for (std::size_t token = tokens.first; token < tokens.last; ++token) {
      network.runtime_->kernels.rms_norm(network.hidden_.data() + token * stride, weight.data(),
                                         size, network.shape_.rms_norm_eps,
                                         network.normed_.data() + token * stride);
    }
  });
}

void Step::norm_qkv_rope_write(std::size_t layer_index) {
  const Layer& layer = layer_of(layer_index);
  Network& network = *network_;
  const NetworkShape& shape = network.shape_;
  norm_all(layer.attention_norm);
  layer.qkv->multiply(*network.runtime_, network.normed_.data(), padded(shape.hidden_size),
                      batch_.num_tokens(), network.qkv_.data(), padded(shape.qkv_size()), false);
  const std::size_t layer_values =
      kv_.num_blocks * kv_.block_size * shape.num_kv_heads * shape.head_dim;
  const RopeCall call{
      .qkv = network.qkv_.data(),
      .qkv_stride = padded(shape.qkv_size()),
      .q_norm = layer.q_norm.empty() ? nullptr : layer.q_norm.data(),
      .k_norm = layer.k_norm.empty() ? nullptr : layer.k_norm.data(),
      .eps = shape.rms_norm_eps,
      .positions = batch_.positions.data(),
      .slots = batch_.slot_mapping.data(),
      .cos = network.cos_.data(),
      .sin = network.sin_.data(),
      .num_heads = shape.num_heads,
      .num_kv_heads = shape.num_kv_heads,
      .head_dim = shape.head_dim,
      .queries = network.queries_.data(),
      .keys = kv_.keys + layer_index * layer_values,
      .values = kv_.values + layer_index * layer_values,
  };
  const std::size_t step = tokens_of_a_piece(batch_.num_tokens(), shape.qkv_size());
  network.runtime_->run_in_parts(batch_.num_tokens(), step, [&](Range tokens, int) {
    network.runtime_->kernels.rope_and_write(call, tokens);
  });
}

void Step::paged_attention(std::size_t layer_index) {
  layer_of(layer_index);
  Network& network = *network_;
  const NetworkShape& shape = network.shape_;
  const std::size_t layer_values =
      kv_.num_blocks * kv_.block_size * shape.num_kv_heads * shape.head_dim;
  AttentionCall call = network.attention_call();
  call.queries = network.queries_.data();
  call.keys = kv_.keys + layer_index * layer_values;
  call.values = kv_.values + layer_index * layer_values;
  call.block_size = kv_.block_size;
  call.out = network.attended_.data();
  everbatch::paged_attention(*network.runtime_, call, batch_, network.attention_scratch_);
}

void Step::project_add(std::size_t layer_index) {
  Network& network = *network_;
  const NetworkShape& shape = network.shape_;
  layer_of(layer_index).o->multiply(*network.runtime_, network.attended_.data(),
                                    padded(shape.query_size()), batch_.num_tokens(),
                                    network.hidden_.data(), padded(shape.hidden_size), true);
}

void Step::norm_mlp_add(std::size_t layer_index) {
  const Layer& layer = layer_of(layer_index);
  Network& network = *network_;
  const NetworkShape& shape = network.shape_;
  const std::size_t num_tokens = batch_.num_tokens();
  norm_all(layer.mlp_norm);
  layer.gate_up->silu_times(*network.runtime_, network.normed_.data(), padded(shape.hidden_size),
                            num_tokens, network.gated_.data(), padded(shape.intermediate_size));
  layer.down->multiply(*network.runtime_, network.gated_.data(), padded(shape.intermediate_size),
                       num_tokens, network.hidden_.data(), padded(shape.hidden_size), true);
}

// Put the final norm of a row of logits into row `place` of normed.
void Step::norm_for_logits(std::size_t row, std::size_t place) {
  Network& network = *network_;
  const NetworkShape& shape = network.shape_;
  const std::size_t stride = padded(shape.hidden_size);
  const auto token = static_cast<std::size_t>(batch_.logit_rows[row]);
  network.runtime_->kernels.rms_norm(network.hidden_.data() + token * stride,
                                     network.final_norm_.data(), shape.hidden_size,
                                     shape.rms_norm_eps, network.normed_.data() + place * stride);
}

void Step::norm_logits(float* logits) {
  const auto lock = enter();
  const ThreadPool::Caller pinned(network_->runtime_->pool);
  Network& network = *network_;
  for (std::size_t row = 0; row < num_logit_rows(); ++row) norm_for_logits(row, row);
  network.lm_head_->multiply(*network.runtime_, network.normed_.data(),
                             padded(network.shape_.hidden_size), num_logit_rows(), logits,
                             network.shape_.vocab_size, false);
}

void Step::norm_sample(const SamplingCall& call) {
  const auto lock = enter();
  const ThreadPool::Caller pinned(network_->runtime_->pool);
  Network& network = *network_;
  const std::size_t stride = padded(network.shape_.hidden_size);
  const std::size_t vocab_size = network.shape_.vocab_size;
  std::vector<bool> is_plain(num_logit_rows(), true);
  for (std::size_t i = 0; i < call.options.size(); ++i) {
    if (!call.options[i].is_plain()) is_plain[static_cast<std::size_t>(call.logits_of[i])] = false;
  }
  // Plain rows first, then those whose logits are needed.
  std::vector<std::size_t> place(num_logit_rows());
  std::size_t num_placed = 0;
  for (const bool plain : {true, false}) {
    for (std::size_t row = 0; row < num_logit_rows(); ++row) {
      if (is_plain[row] == plain) norm_for_logits(row, place[row] = num_placed++);
    }
  }
  const auto num_plain =
      static_cast<std::size_t>(std::count(is_plain.begin(), is_plain.end(), true));
  std::vector<Largest> largest(num_plain);
  network.lm_head_->find_largest(*network.runtime_, network.normed_.data(), stride, num_plain,
                                 largest.data());
  for (std::size_t i = 0; i < call.options.size(); ++i) {
    const auto row = static_cast<std::size_t>(call.logits_of[i]);
    if (!is_plain[row]) continue;
    call.rows[i].token_id = largest[place[row]].output;
    call.rows[i].has_failed = !largest[place[row]].all_finite;
  }
  for (std::size_t first = num_plain; first < num_placed; first += kLogitRows) {
    const std::size_t last = std::min(num_placed, first + kLogitRows);
    network.logits_.reserve((last - first) * vocab_size);
    network.lm_head_->multiply(*network.runtime_, network.normed_.data() + first * stride, stride,
                               last - first, network.logits_.data(), vocab_size, false);
    std::vector<std::size_t> wanted;
    for (std::size_t i = 0; i < call.options.size(); ++i) {
      const std::size_t where = place[static_cast<std::size_t>(call.logits_of[i])];
      if (where >= first && where < last) wanted.push_back(i);
    }
    sample_rows(*network.runtime_, call, wanted, place, first, network.logits_.data(), vocab_size,
                network.samplers_);
  }
}

void sample_rows(Runtime& runtime, const SamplingCall& call, const std::vector<std::size_t>& wanted,
                 const std::vector<std::size_t>& place, std::size_t first, const float* logits,
                 std::size_t vocab_size, std::vector<RowSampler>& samplers) {
  const auto num_threads = static_cast<std::size_t>(runtime.pool.num_threads());
  while (samplers.size() < num_threads) samplers.emplace_back(runtime.kernels, vocab_size);
  runtime.pool.run(wanted.size(), [&](std::size_t index, int thread) {
    const std::size_t i = wanted[index];
    const std::size_t row = place[static_cast<std::size_t>(call.logits_of[i])] - first;
    call.rows[i] = samplers[static_cast<std::size_t>(thread)].sample(
        logits + row * vocab_size, call.options[i], call.top_ids + i * call.top_stride,
        call.top_logprobs + i * call.top_stride);
  });
}

}  // namespace everbatch
