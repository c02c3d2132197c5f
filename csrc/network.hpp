// One network's packed weights, and the operations of a forward pass over one batch.
//
// Knows arrays and sizes, not Python. Names are those of src/everbatch/kernels/protocol.py, which
// says what each operation gives; reference.py is what they must equal within rounding.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "aligned_buffer.hpp"
#include "kv_ahead.hpp"
#include "packed_matrix.hpp"
#include "runtime.hpp"
#include "sampling.hpp"

namespace everbatch {

// Rows of logits that are there at once, of those that need them: a bound on memory.
constexpr std::size_t kLogitRows = 96;

// Columns of intermediate results are padded to whole cache lines of bf16.
constexpr std::size_t padded(std::size_t columns) { return round_up(columns, 32); }

struct NetworkShape {
  std::size_t num_layers;
  std::size_t hidden_size;
  std::size_t intermediate_size;
  std::size_t vocab_size;
  std::size_t num_heads;
  std::size_t num_kv_heads;
  std::size_t head_dim;
  float rms_norm_eps;

  std::size_t query_size() const { return num_heads * head_dim; }
  std::size_t qkv_size() const { return (num_heads + 2 * num_kv_heads) * head_dim; }
};

struct Layer {
  std::vector<float> attention_norm;  // [hidden]
  std::shared_ptr<const PackedMatrix> qkv;
  std::vector<float> q_norm;  // [D]; empty: this network has none
  std::vector<float> k_norm;
  std::shared_ptr<const PackedMatrix> o;
  std::vector<float> mlp_norm;  // [hidden]
  std::shared_ptr<const PackedMatrix> gate_up;
  std::shared_ptr<const PackedMatrix> down;
};

// The arrays of PackedBatch (src/everbatch/kernels/batch.py), copied.
struct Batch {
  std::vector<std::int32_t> input_ids;     // [T]
  std::vector<std::int32_t> positions;     // [T]
  std::vector<std::int32_t> cu_seqlens_q;  // [S + 1]
  std::vector<std::int32_t> context_lens;  // [S]
  std::vector<std::int32_t> block_tables;  // [S, max_blocks]
  std::vector<std::int32_t> slot_mapping;  // [T]
  std::vector<std::int32_t> logit_rows;    // [R]

  std::size_t num_tokens() const { return input_ids.size(); }
  std::size_t num_rows() const { return context_lens.size(); }
  std::size_t max_blocks() const { return num_rows() ? block_tables.size() / num_rows() : 0; }

  // std::invalid_argument where an index leads out of an array of this network or its KV storage.
  void check(std::size_t vocab_size, std::size_t num_blocks, std::size_t block_size) const;
};

// keys, values: [L, num_blocks, block_size, H_kv, D] bf16.
struct KvView {
  Bf16* keys;
  Bf16* values;
  std::size_t num_blocks;
  std::size_t block_size;
};

// The first row of each thread, and the end of the last one's: rows in their order, cut into shares of
// about the same work in attention.
std::vector<std::size_t> rows_of_threads(const Batch& batch, std::size_t num_threads);

// Attention of all rows of a batch; keys and values point to one layer.
// out: [T, out_stride]. `scratch` holds one thread's memory after the other's, and grows.
void paged_attention(Runtime& runtime, const AttentionCall& call, const Batch& batch,
                     AlignedBuffer<std::byte>& scratch);

// The most that `scratch` grows to with batches of so many tokens and contexts of this length; of
// `call` only the sizes count.
std::size_t max_attention_bytes(const Runtime& runtime, const AttentionCall& call,
                                std::size_t num_tokens, std::size_t context_len);

// Rows to sample, and where what comes of them goes.
struct SamplingCall {
  const std::vector<std::int32_t>& logits_of;  // [R] indices of rows of logits
  const std::vector<RowOptions>& options;      // [R]
  SampledRow* rows;                            // [R]
  std::int64_t* top_ids;                       // [R, top_stride]
  float* top_logprobs;                         // [R, top_stride]
  std::size_t top_stride;                      // at least num_logprobs of each
};

// Sample the rows `wanted` of a call, threads sharing them. Row r of logits is row place[r] - first of
// `logits`. samplers: one a thread, made where there is none yet.
void sample_rows(Runtime& runtime, const SamplingCall& call, const std::vector<std::size_t>& wanted,
                 const std::vector<std::size_t>& place, std::size_t first, const float* logits,
                 std::size_t vocab_size, std::vector<RowSampler>& samplers);

enum class Operation { kEmbed, kNormQkvRopeWrite, kPagedAttention, kProjectAdd, kNormMlpAdd };

class Network {
 public:
  // lm_head null: the embedding is used. std::invalid_argument where sizes contradict each other.
  Network(std::shared_ptr<Runtime> runtime, const NetworkShape& shape, std::vector<Layer> layers,
          std::shared_ptr<const PackedMatrix> embedding,
          std::shared_ptr<const PackedMatrix> lm_head, std::vector<float> final_norm,
          std::vector<float> inverse_frequencies, float rotary_scale);

  const NetworkShape& shape() const { return shape_; }
  // Of all weights.
  std::size_t num_bytes() const;
  // Of the intermediate results of the largest batch so far, and of what else outlives a step.
  std::size_t workspace_bytes() const;
  // The most that this grows to with batches of so many tokens, in contexts of this length.
  std::size_t max_workspace_bytes(std::size_t num_tokens, std::size_t context_len) const;

 private:
  friend class Step;

  void check() const;
  void make_room(std::size_t num_tokens);
  void extend_rotation(std::size_t num_positions);
  std::size_t bytes_of_rows(std::size_t num_tokens) const;
  AttentionCall attention_call() const;

  std::shared_ptr<Runtime> runtime_;
  NetworkShape shape_;
  std::vector<Layer> layers_;
  std::shared_ptr<const PackedMatrix> embedding_;
  std::shared_ptr<const PackedMatrix> lm_head_;
  std::vector<float> final_norm_;
  std::vector<float> inverse_frequencies_;
  float rotary_scale_;

  // cos and sin of every position so far, [positions, D / 2], times rotary_scale.
  std::vector<float> cos_;
  std::vector<float> sin_;

  // Rows of the matrices below, whose columns are padded to whole cache lines.
  AlignedBuffer<float> hidden_;   // [T, hidden]
  AlignedBuffer<Bf16> normed_;    // [T, hidden]
  AlignedBuffer<float> qkv_;      // [T, (H + 2 H_kv) * D]
  AlignedBuffer<Bf16> queries_;   // [T, H, D], not padded
  AlignedBuffer<Bf16> attended_;  // [T, H * D]
  AlignedBuffer<Bf16> gated_;     // [T, intermediate]
  AlignedBuffer<std::byte> attention_scratch_;
  AlignedBuffer<float> logits_;  // [kLogitRows, vocab], for rows that need them to sample
  std::vector<RowSampler> samplers_;

  std::mutex one_caller_;
  std::uint64_t num_steps_ = 0;
};

// One forward pass. Its intermediate results are the network's, so a network runs one at a time: an
// operation of a step raises std::logic_error once a later step has begun.
class Step {
 public:
  Step(std::shared_ptr<Network> network, Batch batch, KvView kv);

  // Run operations one after the other, each of a layer, which embed ignores.
  void run(const std::vector<std::pair<Operation, std::size_t>>& operations);
  // logits: float32 [R, vocab].
  void norm_logits(float* logits);
  // Sample from the logits of the batch. Rows of which only the largest is wanted are never written.
  void norm_sample(const SamplingCall& call);

  std::size_t num_logit_rows() const { return batch_.logit_rows.size(); }
  const NetworkShape& shape() const { return network_->shape(); }

 private:
  std::unique_lock<std::mutex> enter() const;
  void embed();
  void norm_qkv_rope_write(std::size_t layer);
  void paged_attention(std::size_t layer);
  void project_add(std::size_t layer);
  void norm_mlp_add(std::size_t layer);
  void norm_for_logits(std::size_t row, std::size_t place);
  const Layer& layer_of(std::size_t layer) const;
  KvAhead* ahead_of(std::size_t layer, std::size_t work_after);
  void norm_all(const std::vector<float>& weight);

  std::shared_ptr<Network> network_;
  Batch batch_;
  KvView kv_;
  std::optional<KvAhead> ahead_;
  std::uint64_t number_;
};

}  // namespace everbatch
