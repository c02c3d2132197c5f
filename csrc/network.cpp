#include "network.hpp"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string>

namespace everbatch {
namespace {

// Angles are made for so many positions at a time.
constexpr std::size_t kPositionsAtOnce = 1024;

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

}  // namespace everbatch
