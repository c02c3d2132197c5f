// What is compiled once for each path of the CPU, as a table of functions.
//
// A path is a set of instructions: gemm.cpp, attention.cpp and elementwise.cpp are compiled for each
// and put their functions into its table. Results of one path are bitwise reproducible; those of two
// paths differ in rounding. Everything here runs on one thread; who shares the work is network.cpp.
//
// No checks: the callers (bindings.cpp, network.cpp) have made sure of sizes and indices.
#pragma once

#include <cstddef>
#include <cstdint>

#include "bf16.hpp"

namespace everbatch {

// A panel is 16 outputs of a matrix, its values in the order in which a product reads them:
// [K / 2][16][2], K rounded up to even with zeros. Panels come in pairs.
constexpr std::size_t kPanelColumns = 16;
constexpr std::size_t kPairColumns = 2 * kPanelColumns;

// Attention walks a context in tiles of so many positions, counted from position 0.
constexpr std::size_t kTilePositions = 64;

enum class GemmOutput {
  kStore,      // out float32 = product + bias
  kAdd,        // out float32 += product + bias
  kSiluTimes,  // out bf16 = silu(even panels) * odd panels, 16 columns a pair
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
  std::size_t num_columns;  // of `out`; columns of the last panels beyond it are dropped
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

// Consecutive tokens of one row, and the key-value head that they look at.
struct AttentionTask {
  const std::int32_t* block_table;  // of the row
  std::size_t first_token;          // index into T
  std::size_t num_tokens;
  std::size_t first_position;  // of first_token in its context
  std::size_t kv_head;
};

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

struct PathKernels {
  // Rows [rows.first, rows.last) times the panel pairs of `pairs`.
  // The sum of one output runs along K in one order, whatever the rows and pairs.
  void (*gemm)(const GemmCall& call, Range rows, Range pairs);
  // Bytes of scratch memory that one thread needs for `attend` with so many tokens at once.
  std::size_t (*attention_scratch)(const AttentionCall& call, std::size_t num_tokens);
  void (*attend)(const AttentionCall& call, const AttentionTask& task, std::byte* scratch);
  // out bf16 = x / sqrt(mean(x ** 2) + eps) * weight, one row of `size` values.
  void (*rms_norm)(const float* x, const float* weight, std::size_t size, float eps, Bf16* out);
  // Norm of heads, rotation, and writing to slots, for the tokens of `tokens`.
  void (*rope_and_write)(const RopeCall& call, Range tokens);
};

}  // namespace everbatch
