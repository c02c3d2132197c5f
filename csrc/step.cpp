// One forward pass: the operations of a step, and how threads share them.
#include <algorithm>
#include <stdexcept>
#include <string>

#include "network.hpp"

namespace everbatch {
namespace {

// Work on single tokens is shared in pieces of so many values; a smaller batch is not shared at all,
// as waking a thread costs a microsecond.
constexpr std::size_t kValuesPerPiece = 8192;
constexpr std::size_t kMinSharedValues = 16384;

std::size_t tokens_of_a_piece(std::size_t num_tokens, std::size_t values_per_token) {
  if (num_tokens * values_per_token < kMinSharedValues) return std::max<std::size_t>(num_tokens, 1);
  return std::max<std::size_t>(kValuesPerPiece / values_per_token, 1);
}

}  // namespace

Step::Step(std::shared_ptr<Network> network, Batch batch, KvView kv)
    : network_(std::move(network)), batch_(std::move(batch)), kv_(kv) {
  batch_.check(network_->shape_.vocab_size, kv.num_blocks, kv.block_size);
  const std::lock_guard lock(network_->one_caller_);
  network_->make_room(batch_.num_tokens());
  const std::int32_t longest =
      *std::max_element(batch_.context_lens.begin(), batch_.context_lens.end());
  network_->extend_rotation(static_cast<std::size_t>(longest));
  const NetworkShape& shape = network_->shape_;
  ahead_.emplace(*network_->runtime_, batch_, kv_, shape.num_kv_heads * shape.head_dim);
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

// What to ask for during a product, before attention of `layer`; null after the last layer.
KvAhead* Step::ahead_of(std::size_t layer, std::size_t work_after) {
  if (layer == network_->layers_.size()) return nullptr;
  ahead_->aim(layer, work_after);
  return &*ahead_;
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
                      batch_.num_tokens(), network.qkv_.data(), padded(shape.qkv_size()), false,
                      ahead_of(layer_index, 0));
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
  const Layer& layer = layer_of(layer_index);
  const std::size_t num_tokens = batch_.num_tokens();
  const std::size_t work_after =
      layer.gate_up->work(num_tokens) + layer.down->work(num_tokens) + layer.qkv->work(num_tokens);
  layer.o->multiply(*network.runtime_, network.attended_.data(), padded(shape.query_size()),
                    num_tokens, network.hidden_.data(), padded(shape.hidden_size), true,
                    ahead_of(layer_index + 1, work_after));
}

void Step::norm_mlp_add(std::size_t layer_index) {
  const Layer& layer = layer_of(layer_index);
  Network& network = *network_;
  const NetworkShape& shape = network.shape_;
  const std::size_t num_tokens = batch_.num_tokens();
  // All layers have the same sizes, so the next one's products are as long as this one's.
  const std::size_t qkv_work = layer.qkv->work(num_tokens);
  norm_all(layer.mlp_norm);
  layer.gate_up->silu_times(*network.runtime_, network.normed_.data(), padded(shape.hidden_size),
                            num_tokens, network.gated_.data(), padded(shape.intermediate_size),
                            ahead_of(layer_index + 1, layer.down->work(num_tokens) + qkv_work));
  layer.down->multiply(*network.runtime_, network.gated_.data(), padded(shape.intermediate_size),
                       num_tokens, network.hidden_.data(), padded(shape.hidden_size), true,
                       ahead_of(layer_index + 1, qkv_work));
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
