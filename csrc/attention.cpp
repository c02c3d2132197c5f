// Attention over block tables: softmax(q k^T) v, tile by tile of the context (online softmax, arXiv
// 1805.02867; FlashAttention-2, arXiv 2307.08691), and segment by segment of some tiles, each from an
// empty state: so two threads may take two segments of one context (Flash-Decoding). They are joined
// in their order, whoever computed them.
//
// A tile is 64 positions of the context, counted from 0, whatever the size of KV blocks and whichever
// tokens are computed together. Both products are those of gemm.cpp, over panels that are made of the
// tile, so a token's bits depend on its context alone: positions past its own get the weight 0, and
// adding 0 times a number changes no sum.
#include "attention_scratch.hpp"
#include "kernels.hpp"
#include "path_math.hpp"
#include "tile_packing.hpp"
#include "tile_softmax.hpp"

namespace everbatch::EVERBATCH_PATH {

void gemm(const GemmCall& call, Range rows, Range pairs);

namespace {

constexpr std::size_t kTilePairs = kTilePositions / kPairColumns;
constexpr float kInfinity = __builtin_inff();
constexpr std::size_t kLineValues = 64 / sizeof(Bf16);

// Where the vectors [D] of a tile's positions lie; zeros past the last one that anybody sees.
struct TileRows {
  const Bf16* keys[kTilePositions];
  const Bf16* values[kTilePositions];
};

// Call visit(position in the tile, how many follow in one block, offset of the first one's heads).
template <typename Visit>
inline void visit_blocks(const AttentionCall& call, const AttentionTask& task, std::size_t first,
                         std::size_t count, Visit visit) {
  const std::size_t stride = call.num_kv_heads * call.head_dim;
  std::size_t block = first / call.block_size, in_block = first % call.block_size;
  for (std::size_t i = 0; i < count; ++block, in_block = 0) {
    const std::size_t here = smaller(call.block_size - in_block, count - i);
    const auto id = static_cast<std::size_t>(task.block_table[block]);
    const std::size_t slot = id * call.block_size + in_block;
    visit(i, here, slot * stride + task.kv_head * call.head_dim);
    i += here;
  }
}

bool has_all_heads(const AttentionCall& call, const AttentionTask& task) {
  return task.num_kv_heads == call.num_kv_heads;
}

// Copy a tile of all heads, block by block: such long runs a CPU foresees, so they come from memory
// twice as fast as the pieces of one head after the other do.
void copy_tile(const AttentionCall& call, const AttentionTask& task, const Scratch& scratch,
               std::size_t first, std::size_t num_seen) {
  const std::size_t stride = call.num_kv_heads * call.head_dim;
  visit_blocks(call, task, first, num_seen,
               [&](std::size_t i, std::size_t count, std::size_t offset) {
                 const std::size_t bytes = count * stride * sizeof(Bf16);
                 __builtin_memcpy(scratch.tile_keys + i * stride, call.keys + offset, bytes);
                 __builtin_memcpy(scratch.tile_values + i * stride, call.values + offset, bytes);
               });
}

// Of one head of the task, `head` counted from its first.
void find_rows(const AttentionCall& call, const AttentionTask& task, const Scratch& scratch,
               std::size_t head, std::size_t first, std::size_t num_seen, TileRows& rows) {
  const std::size_t stride = call.num_kv_heads * call.head_dim, own = head * call.head_dim;
  if (has_all_heads(call, task)) {
    for (std::size_t i = 0; i < num_seen; ++i) {
      rows.keys[i] = scratch.tile_keys + i * stride + own;
      rows.values[i] = scratch.tile_values + i * stride + own;
    }
  } else {
    visit_blocks(call, task, first, num_seen,
                 [&](std::size_t i, std::size_t count, std::size_t offset) {
                   offset += own;
                   for (const std::size_t end = i + count; i < end; ++i, offset += stride) {
                     rows.keys[i] = call.keys + offset;
                     rows.values[i] = call.values + offset;
                   }
                 });
  }
  for (std::size_t i = num_seen; i < kTilePositions; ++i) {
    rows.keys[i] = rows.values[i] = scratch.zeros;
  }
}

// Ask for what positions [first, last) of the context hold of the task's heads, which comes from
// memory while something else is computed. Inline, as GCC drops calls of a function that does nothing
// but prefetch.
[[gnu::always_inline]] inline void fetch(const AttentionCall& call, const AttentionTask& task,
                                         std::size_t first, std::size_t last) {
  const std::size_t stride = call.num_kv_heads * call.head_dim;
  const std::size_t own = task.num_kv_heads * call.head_dim;
  visit_blocks(call, task, first, last - first,
               [&](std::size_t, std::size_t count, std::size_t offset) {
                 const Bf16* const starts[] = {call.keys + offset, call.values + offset};
                 for (const Bf16* from : starts) {
                   for (std::size_t i = 0; i < count; ++i, from += stride) {
                     for (std::size_t value = 0; value < own; value += kLineValues) {
                       __builtin_prefetch(from + value);
                     }
                   }
                 }
               });
}

// Turn a row's scores of a tile into weights, and rescale what was summed before.
// Positions [0, num_seen) of the tile count; what is stored for the others may be anything.
void softmax_row(const AttentionCall& call, const Scratch& scratch, std::size_t row,
                 std::size_t num_seen) {
  float* scores = scratch.scores + row * kTilePositions;
  Bf16* weights = scratch.weights + row * kTilePositions;
  for (std::size_t i = num_seen; i < kTilePositions; ++i) scores[i] = -kInfinity;
  float* totals = scratch.totals + row * kLanes;
  const float before = scratch.largest[row];
  const float largest = scale_and_find_largest(scores, call.scale, before);
  if (largest != before) {
    // Otherwise it is e ** 0, exactly 1. Of the first tile it is e ** -87 at most, times 0.
    const float shrink = exp_of(before - largest);
    scratch.largest[row] = largest;
    for (std::size_t lane = 0; lane < kLanes; ++lane) totals[lane] *= shrink;
    float* sums = scratch.sums + row * scratch.value_columns;
    for (std::size_t i = 0; i < scratch.value_columns; ++i) sums[i] *= shrink;
  }
  exponentiate(scores, largest, weights);
  for (std::size_t i = num_seen; i < kTilePositions; ++i) weights[i] = 0;
  // As rounded, which is what the product will use: so the weights sum to 1.
  add_weights(weights, totals);
}

void start(const AttentionCall& call, const AttentionTask& task, const Scratch& scratch) {
  const std::size_t group = call.num_heads / call.num_kv_heads;
  const std::size_t group_values = group * call.head_dim;
  for (std::size_t token = 0; token < task.num_tokens; ++token) {
    const std::size_t first_head =
        (task.first_token + token) * call.num_heads + task.kv_head * group;
    __builtin_memcpy(scratch.queries + token * group_values,
                     call.queries + first_head * call.head_dim, group_values * sizeof(Bf16));
  }
  __builtin_memset(scratch.zeros, 0, call.head_dim * sizeof(Bf16));
  if (scratch.value_columns != call.head_dim) {
    // Columns past the head's dimension are never written again.
    __builtin_memset(scratch.value_panels, 0,
                     kTilePositions * scratch.value_columns * sizeof(Bf16));
  }
}

void clear(const Scratch& scratch, std::size_t num_rows) {
  __builtin_memset(scratch.sums, 0, num_rows * scratch.value_columns * sizeof(float));
  __builtin_memset(scratch.totals, 0, num_rows * kLanes * sizeof(float));
  for (std::size_t row = 0; row < num_rows; ++row) scratch.largest[row] = -kInfinity;
}

// Add to one head of the task the tile of positions from `first` on, of which the last token sees
// `num_seen`.
void add_tile(const AttentionCall& call, const AttentionTask& task, const Scratch& scratch,
              std::size_t head, std::size_t first, std::size_t num_seen) {
  const std::size_t group = call.num_heads / call.num_kv_heads;
  const std::size_t num_rows = task.num_tokens * group;
  const std::size_t num_columns = round_up(num_seen, kPairColumns);
  TileRows rows;
  find_rows(call, task, scratch, head, first, num_seen, rows);
  pack_keys(rows.keys, num_columns, call.head_dim, scratch.key_panels);
  gemm({.x = scratch.queries,
        .x_stride = call.head_dim,
        .panels = scratch.key_panels,
        .panel_stride = kPanelColumns * call.head_dim,
        .num_k_pairs = call.head_dim / 2,
        .bias = nullptr,
        .output = GemmOutput::kStore,
        .out = scratch.scores,
        .out_stride = kTilePositions,
        .num_columns = kTilePositions},
       {0, num_rows}, {0, num_columns / kPairColumns});
  for (std::size_t row = 0; row < num_rows; ++row) {
    const std::size_t end = task.first_position + row / group + 1;
    softmax_row(call, scratch, row, end > first ? end - first : 0);
  }
  const std::size_t num_position_pairs = (num_seen + 1) / 2;
  pack_values(rows.values, num_position_pairs, call.head_dim, scratch.value_panels);
  gemm({.x = scratch.weights,
        .x_stride = kTilePositions,
        .panels = scratch.value_panels,
        .panel_stride = kPanelColumns * kTilePositions,
        .num_k_pairs = num_position_pairs,
        .bias = nullptr,
        .output = GemmOutput::kAdd,
        .out = scratch.sums,
        .out_stride = scratch.value_columns,
        .num_columns = scratch.value_columns},
       {0, num_rows}, {0, scratch.value_columns / kPairColumns});
}

AttentionTask of_head(const AttentionTask& task, std::size_t head) {
  AttentionTask one = task;
  one.kv_head += head;
  one.num_kv_heads = 1;
  return one;
}

// Tiles of one segment, from an empty state; tile by tile for all heads, whose keys and values lie
// side by side. heads: the memory of each.
void add_segment(const AttentionCall& call, const AttentionTask& task, const Scratch* heads,
                 std::size_t segment) {
  const std::size_t num_rows = task.num_tokens * (call.num_heads / call.num_kv_heads);
  for (std::size_t head = 0; head < task.num_kv_heads; ++head) clear(heads[head], num_rows);
  const std::size_t context_end = task.first_position + task.num_tokens;
  const std::size_t last = smaller(context_end, (segment + 1) * kSegmentPositions);
  for (std::size_t first = segment * kSegmentPositions; first < last; first += kTilePositions) {
    const std::size_t num_seen = smaller(context_end - first, kTilePositions);
    if (has_all_heads(call, task)) {
      copy_tile(call, task, heads[0], first, num_seen);
    } else {
      const std::size_t next = smaller(context_end, first + kTilePositions);
      fetch(call, task, next, smaller(context_end, next + kTilePositions));
    }
    for (std::size_t head = 0; head < task.num_kv_heads; ++head) {
      add_tile(call, task, heads[head], head, first, num_seen);
    }
  }
}

// known = what the segment gives, which is the first of all.
void take_segment(const Scratch& scratch, std::size_t num_rows, const Known& known) {
  __builtin_memcpy(known.sums, scratch.sums, num_rows * scratch.value_columns * sizeof(float));
  __builtin_memcpy(known.largest, scratch.largest, num_rows * sizeof(float));
  for (std::size_t row = 0; row < num_rows; ++row) {
    known.totals[row] = sum_of_lanes(scratch.totals + row * kLanes);
  }
}

// Add to `known` what segment `segment` gives, for the rows that see it.
void join_segment(const AttentionCall& call, const AttentionTask& task, std::size_t segment,
                  const Known& next, const Known& known) {
  const std::size_t group = call.num_heads / call.num_kv_heads;
  const std::size_t columns = round_up(call.head_dim, kPairColumns);
  for (std::size_t row = 0; row < task.num_tokens * group; ++row) {
    if (task.first_position + row / group < segment * kSegmentPositions) continue;
    const float largest =
        next.largest[row] > known.largest[row] ? next.largest[row] : known.largest[row];
    const float shrink = exp_of(known.largest[row] - largest);
    const float next_shrink = exp_of(next.largest[row] - largest);
    known.largest[row] = largest;
    known.totals[row] = known.totals[row] * shrink + next.totals[row] * next_shrink;
    float* __restrict sums = known.sums + row * columns;
    const float* __restrict next_sums = next.sums + row * columns;
    for (std::size_t i = 0; i < columns; ++i) {
      sums[i] = sums[i] * shrink + next_sums[i] * next_shrink;
    }
  }
}

void write_rows(const AttentionCall& call, const AttentionTask& task, const Known& known) {
  const std::size_t group = call.num_heads / call.num_kv_heads;
  const std::size_t columns = round_up(call.head_dim, kPairColumns);
  for (std::size_t row = 0; row < task.num_tokens * group; ++row) {
    const std::size_t token = task.first_token + row / group;
    const std::size_t head = task.kv_head * group + row % group;
    const float inverse = 1.0f / known.totals[row];
    const float* sums = known.sums + row * columns;
    Bf16* out = call.out + token * call.out_stride + head * call.head_dim;
    for (std::size_t i = 0; i < call.head_dim; ++i) out[i] = to_bf16(sums[i] * inverse);
  }
}

std::size_t num_rows_of(const AttentionCall& call, const AttentionTask& task) {
  return task.num_tokens * (call.num_heads / call.num_kv_heads);
}

// Make the memory of each head of a task ready.
void start_all(const AttentionCall& call, const AttentionTask& task, std::byte* memory,
               Scratch* heads) {
  for (std::size_t head = 0; head < task.num_kv_heads; ++head) {
    Carver carver(memory);
    heads[head] = carve(call, task.num_tokens, head, carver);
    start(call, of_head(task, head), heads[head]);
  }
}

}  // namespace

std::size_t attention_scratch(const AttentionCall& call, std::size_t num_tokens,
                              std::size_t num_kv_heads) {
  Carver carver(nullptr);
  carve(call, num_tokens, num_kv_heads - 1, carver);
  return carver.used();
}

std::size_t segment_bytes(const AttentionCall& call, std::size_t num_tokens,
                          std::size_t num_kv_heads) {
  Carver carver(nullptr);
  for (std::size_t head = 0; head < num_kv_heads; ++head) carve_known(call, num_tokens, carver);
  return carver.used();
}

void attend(const AttentionCall& call, const AttentionTask& task, std::byte* memory) {
  const std::size_t num_rows = num_rows_of(call, task);
  if (!has_all_heads(call, task)) {
    fetch(call, task, 0, smaller(task.first_position + task.num_tokens, kTilePositions));
  }
  Scratch heads[kMaxHeadsTogether];
  Known known[kMaxHeadsTogether];
  start_all(call, task, memory, heads);
  for (std::size_t head = 0; head < task.num_kv_heads; ++head) {
    Carver of_known(heads[head].known);
    known[head] = carve_known(call, task.num_tokens, of_known);
  }
  add_segment(call, task, heads, 0);
  for (std::size_t head = 0; head < task.num_kv_heads; ++head) {
    take_segment(heads[head], num_rows, known[head]);
  }
  for (std::size_t segment = 1; segment < num_segments(task); ++segment) {
    add_segment(call, task, heads, segment);
    for (std::size_t head = 0; head < task.num_kv_heads; ++head) {
      const Scratch& own = heads[head];
      // In place: the totals of a row are the first of its lanes from here on.
      for (std::size_t row = 0; row < num_rows; ++row) {
        own.totals[row] = sum_of_lanes(own.totals + row * kLanes);
      }
      join_segment(call, task, segment, {own.sums, own.largest, own.totals}, known[head]);
    }
  }
  for (std::size_t head = 0; head < task.num_kv_heads; ++head) {
    write_rows(call, of_head(task, head), known[head]);
  }
}

void attend_segment(const AttentionCall& call, const AttentionTask& task, std::size_t segment,
                    std::byte* memory, std::byte* out) {
  Scratch heads[kMaxHeadsTogether];
  start_all(call, task, memory, heads);
  add_segment(call, task, heads, segment);
  Carver carver(out);
  for (std::size_t head = 0; head < task.num_kv_heads; ++head) {
    take_segment(heads[head], num_rows_of(call, task), carve_known(call, task.num_tokens, carver));
  }
}

void join_segments(const AttentionCall& call, const AttentionTask& task, std::byte* segments) {
  const std::size_t bytes = segment_bytes(call, task.num_tokens, task.num_kv_heads);
  const std::size_t head_bytes = bytes / task.num_kv_heads;
  for (std::size_t head = 0; head < task.num_kv_heads; ++head, segments += head_bytes) {
    Carver first(segments);
    const Known known = carve_known(call, task.num_tokens, first);
    for (std::size_t segment = 1; segment < num_segments(task); ++segment) {
      Carver carver(segments + segment * bytes);
      join_segment(call, task, segment, carve_known(call, task.num_tokens, carver), known);
    }
    write_rows(call, of_head(task, head), known);
  }
}

}  // namespace everbatch::EVERBATCH_PATH
