// What is compiled once for each path of the CPU, as a table of functions.
//
// A path is a set of instructions: gemm.cpp, attention.cpp and elementwise.cpp are compiled for each
// and put their functions into its table. Results of one path are bitwise reproducible; those of two
// paths differ in rounding. Everything here runs on one thread; who shares the work is step.cpp.
//
// No checks: the callers (bindings.cpp, step.cpp) have made sure of sizes and indices.
#pragma once

#include <cstddef>
#include <cstdint>

#include "bf16.hpp"

namespace everbatch {

// A panel is 32 outputs of a matrix, its values in the order in which a product reads them:
// [K / 2][32][2], K rounded up to even with zeros; so a product reads one run of memory.
constexpr std::size_t kPanelColumns = 32;
constexpr std::size_t kPanelPairValues = 2 * kPanelColumns;
// Half a panel: as many float32 as the widest vector has.
constexpr std::size_t kHalfColumns = kPanelColumns / 2;

// Attention walks a context in tiles of so many positions, counted from position 0.
constexpr std::size_t kTilePositions = 64;

// And tiles in segments of so many positions, which may be computed apart from each other.
constexpr std::size_t kSegmentPositions = 4 * kTilePositions;

// Key-value heads of one token that are computed together, tile by tile.
constexpr std::size_t kMaxHeadsTogether = 8;

// What is known of a row of a product whose columns nobody keeps, in lanes by column.
struct LargestLanes {
  float values[kHalfColumns];      // -inf before the first column
  std::int32_t columns[kHalfColumns];
  float spoilt[kHalfColumns];  // 0; a NaN once a column is no finite number
};

enum class GemmOutput {
  kStore,      // out float32 = product + bias
  kAdd,        // out float32 += product + bias
  kSiluTimes,  // out bf16 = silu(first halves) * second halves, 16 columns a panel
  kLargest,    // out LargestLanes, one a row: of product + bias, and of what is there
};

// Of a cache line.
constexpr std::size_t kLineBytes = 64;

// Cache lines of keys, and as many of values, that attention will read soon.
struct BlockLines {
  std::size_t offset;  // in bytes, from where a layer's keys or values begin
  std::size_t num_lines;
};

// What is asked for while a product computes.
struct BlocksAhead {
  const std::byte* keys = nullptr;  // of one layer
  const std::byte* values = nullptr;
  const BlockLines* blocks = nullptr;
  std::size_t num_blocks = 0;
};

struct GemmCall {
  const Bf16* x;  // [rows, x_stride], zero past K up to an even count
  std::size_t x_stride;
  const Bf16* panels;
  std::size_t panel_stride;  // values from one panel to the next
  std::size_t num_k_pairs;   // K / 2, rounded up
  const float* bias;         // in the order of the panels' columns, or null
  GemmOutput output;
  void* out;  // [rows, out_stride]
  std::size_t out_stride;
  std::size_t num_columns;  // of `out`; columns of the last panel beyond it are dropped
  BlocksAhead ahead = {};
};

struct Range {
  std::size_t first;
  std::size_t last;  // one past the last
};

struct AttentionCall {
  const Bf16* queries;  // [T, H, D]
  const Bf16* keys;     // [num_blocks, block_size, H_kv, D], as values
  const Bf16* values;
  std::size_t num_heads;
  std::size_t num_kv_heads;
  std::size_t head_dim;  // even
  std::size_t block_size;
  float scale;
  Bf16* out;  // [T, out_stride]
  std::size_t out_stride;
};

// Consecutive tokens of one row, and the key-value heads that they look at.
struct AttentionTask {
  const std::int32_t* block_table;  // of the row
  std::size_t first_token;          // index into T
  std::size_t num_tokens;
  std::size_t first_position;  // of first_token in its context
  std::size_t kv_head;       // the first
  std::size_t num_kv_heads;  // at most kMaxHeadsTogether
};

// How many segments the last token of a task sees.
static constexpr std::size_t num_segments(const AttentionTask& task) {
  return (task.first_position + task.num_tokens + kSegmentPositions - 1) / kSegmentPositions;
}

struct RopeCall {
  const float* qkv;  // [T, qkv_stride]: H + H_kv + H_kv heads of D values
  std::size_t qkv_stride;
  const float* q_norm;  // [D], or null
  const float* k_norm;
  float eps;
  const std::int32_t* positions;  // [T]
  const std::int32_t* slots;      // [T]
  const float* cos;               // [positions, D / 2]
  const float* sin;
  std::size_t num_heads;
  std::size_t num_kv_heads;
  std::size_t head_dim;
  Bf16* queries;  // [T, H, D]
  Bf16* keys;     // [slots, H_kv, D]
  Bf16* values;
};

// A row of logits, and how its weights are made of it:
// e ** ((value - largest) / temperature), 0 where that is below min_p.
struct WeighCall {
  const float* values;
  std::size_t size;  // positive
  float largest;
  float temperature;
  float min_p;
};

// Sums of weights are whole numbers of units.
constexpr float kUnitsOfOne = 0x1p40f;
constexpr double kUnit = 0x1p-40;

using Bucket = std::uint16_t;
constexpr std::size_t kNumBuckets = 1024;

struct RowExtremes {
  float largest;  // NaNs aside
  std::size_t largest_id;  // the lowest
  bool all_finite;
  bool has_nan;
};

struct PathKernels {
  // Rows [rows.first, rows.last) times the panels of `panels`.
  // The sum of one output runs along K in one order, whatever the rows and panels.
  void (*gemm)(const GemmCall& call, Range rows, Range panels);
  // Bytes of scratch memory that one thread needs for `attend` with so many tokens and heads.
  std::size_t (*attention_scratch)(const AttentionCall& call, std::size_t num_tokens,
                                   std::size_t num_kv_heads);
  // next: what the same thread will attend to then, probably, or null: its memory is asked for.
  void (*attend)(const AttentionCall& call, const AttentionTask& task, const AttentionTask* next,
                 std::byte* scratch);
  // The same segment by segment: each is computed into memory of its own, `segment_bytes` from one to
  // the next and 64-byte aligned, and in the end they are joined and written.
  std::size_t (*segment_bytes)(const AttentionCall& call, std::size_t num_tokens,
                               std::size_t num_kv_heads);
  void (*attend_segment)(const AttentionCall& call, const AttentionTask& task, std::size_t segment,
                         std::byte* scratch, std::byte* out);
  void (*join_segments)(const AttentionCall& call, const AttentionTask& task, std::byte* segments);
  // out bf16 = x / sqrt(mean(x ** 2) + eps) * weight, one row of `size` values.
  void (*rms_norm)(const float* x, const float* weight, std::size_t size, float eps, Bf16* out);
  // Norm of heads, rotation, and writing to slots, for the tokens of `tokens`.
  void (*rope_and_write)(const RopeCall& call, Range tokens);
  // Sampling, along one row.
  RowExtremes (*find_extremes)(const float* values, std::size_t size);
  // Write the weights [size]; give their sum in units.
  std::int64_t (*weigh)(const WeighCall& call, float* weights);
  // The sum of weights in units.
  std::int64_t (*sum_weights)(const float* weights, std::size_t size);
  // Sort the tokens roughly by likelihood: bucket 0 has the likeliest, and no token is in a bucket
  // before that of a likelier one.
  void (*find_buckets)(const WeighCall& call, Bucket* buckets);
  // Write the ids, ascending, of one bucket; give how many.
  std::size_t (*collect)(const Bucket* buckets, std::size_t size, Bucket wanted, std::int32_t* ids);
  // Set the weights of all tokens to 0 that are in bucket `first` or later.
  void (*drop_from)(const Bucket* buckets, std::size_t size, Bucket first, float* weights);
  // The first index up to which the weights sum to more than `target` units, which all of them do.
  std::size_t (*find_in_cumulative)(const float* weights, std::size_t size, std::int64_t target);
};

}  // namespace everbatch
