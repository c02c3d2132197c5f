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
#include "tile_few_rows.hpp"
#include "tile_packing.hpp"
#include "tile_prefetch.hpp"
#include "tile_softmax.hpp"

namespace everbatch::EVERBATCH_PATH {

void gemm(const GemmCall& call, Range rows, Range panels);

namespace {

constexpr float kInfinity = __builtin_inff();
// Four of keys, one after the scores, one after the weights, two of values. Where less is packed
// there are fewer, and what is left is asked for at the tile's end.
constexpr std::size_t kPartsOfAHead = 8;

// Where the vectors [D] of a tile's positions lie; zeros past the last one that anybody sees.
struct TileRows {
  const Bf16* keys[kTilePositions];
  const Bf16* values[kTilePositions];
};

std::size_t context_end_of(const AttentionTask& task) {
  return task.first_position + task.num_tokens;
}

// Of one head of the task, `head` counted from its first.
void find_rows(const AttentionCall& call, const AttentionTask& task, const Scratch& scratch,
               std::size_t head, std::size_t first, std::size_t num_seen, TileRows& rows) {
  const std::size_t stride = call.num_kv_heads * call.head_dim;
  visit_blocks(call, task, first, num_seen,
               [&](std::size_t i, std::size_t count, std::size_t offset) {
                 offset += head * call.head_dim;
                 for (const std::size_t end = i + count; i < end; ++i, offset += stride) {
                   rows.keys[i] = call.keys + offset;
                   rows.values[i] = call.values + offset;
                 }
               });
  for (std::size_t i = num_seen; i < kTilePositions; ++i) {
    rows.keys[i] = rows.values[i] = scratch.zeros;
  }
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

// scores = queries times keys, of the first `num_columns` positions of a tile.
void multiply_keys(const AttentionCall& call, const Scratch& scratch, std::size_t num_rows,
                   std::size_t num_columns) {
  if (score_few_rows(num_rows, num_columns, scratch.queries, call.head_dim, scratch.key_panels,
                     scratch.scores)) {
    return;
  }
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
       {0, num_rows}, {0, num_columns / kPanelColumns});
}

// sums += weights times values, of the first pairs of positions of a tile.
void multiply_values(const AttentionCall& call, const Scratch& scratch, const TileRows& rows,
                     std::size_t num_rows, std::size_t num_position_pairs, Ahead& ahead) {
  if (add_few_rows(num_rows, rows.values, call.head_dim, scratch.weights, num_position_pairs,
                   scratch.sums)) {
    return;
  }
  for (std::size_t i = 0; i < num_position_pairs; i += kHalfColumns) {
    const std::size_t count = smaller(num_position_pairs - i, kHalfColumns);
    pack_values(rows.values + 2 * i, i, count, call.head_dim, scratch.value_panels);
    ahead.some();
  }
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
       {0, num_rows}, {0, scratch.value_columns / kPanelColumns});
}

// Add to one head of the task the tile of positions from `first` on, of which the last token sees
// `num_seen`. What comes next is asked for in at most kPartsOfAHead parts.
void add_tile(const AttentionCall& call, const AttentionTask& task, const Scratch& scratch,
              std::size_t head, std::size_t first, std::size_t num_seen, Ahead& ahead) {
  const std::size_t group = call.num_heads / call.num_kv_heads;
  const std::size_t num_rows = task.num_tokens * group;
  const std::size_t num_columns = round_up(num_seen, kPanelColumns);
  TileRows rows;
  find_rows(call, task, scratch, head, first, num_seen, rows);
  for (std::size_t i = 0; i < num_columns; i += kHalfColumns) {
    pack_keys(rows.keys + i, i, call.head_dim, scratch.key_panels);
    ahead.some();
  }
  multiply_keys(call, scratch, num_rows, num_columns);
  ahead.some();
  for (std::size_t row = 0; row < num_rows; ++row) {
    const std::size_t end = task.first_position + row / group + 1;
    softmax_row(call, scratch, row, end > first ? end - first : 0);
  }
  ahead.some();
  multiply_values(call, scratch, rows, num_rows, (num_seen + 1) / 2, ahead);
}

// The tile from `first` on, or the first one of the next task where the task has none.
Ahead ahead_of(const AttentionCall& call, const AttentionTask& task, std::size_t first,
               const AttentionTask* next) {
  const std::size_t num_parts = kPartsOfAHead * task.num_kv_heads;
  if (first < context_end_of(task)) {
    return {call, &task, first, smaller(context_end_of(task), first + kTilePositions), num_parts};
  }
  const std::size_t last = next ? smaller(context_end_of(*next), kTilePositions) : 0;
  return {call, next, 0, last, num_parts};
}

AttentionTask of_head(const AttentionTask& task, std::size_t head) {
  AttentionTask one = task;
  one.kv_head += head;
  one.num_kv_heads = 1;
  return one;
}

// Tiles of one segment, from an empty state; tile by tile for all heads, whose keys and values lie
// side by side. heads: the memory of each. next: what this thread will do then, probably, or null.
void add_segment(const AttentionCall& call, const AttentionTask& task, const Scratch* heads,
                 std::size_t segment, const AttentionTask* next) {
  const std::size_t num_rows = task.num_tokens * (call.num_heads / call.num_kv_heads);
  for (std::size_t head = 0; head < task.num_kv_heads; ++head) clear(heads[head], num_rows);
  const std::size_t context_end = context_end_of(task);
  const std::size_t last = smaller(context_end, (segment + 1) * kSegmentPositions);
  for (std::size_t first = segment * kSegmentPositions; first < last; first += kTilePositions) {
    const std::size_t num_seen = smaller(context_end - first, kTilePositions);
    Ahead ahead = ahead_of(call, task, first + kTilePositions, next);
    for (std::size_t head = 0; head < task.num_kv_heads; ++head) {
      add_tile(call, task, heads[head], head, first, num_seen, ahead);
    }
    ahead.rest();
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
  const std::size_t columns = round_up(call.head_dim, kPanelColumns);
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
  const std::size_t columns = round_up(call.head_dim, kPanelColumns);
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

void attend(const AttentionCall& call, const AttentionTask& task, const AttentionTask* next,
            std::byte* memory) {
  const std::size_t num_rows = num_rows_of(call, task);
  Scratch heads[kMaxHeadsTogether];
  Known known[kMaxHeadsTogether];
  start_all(call, task, memory, heads);
  for (std::size_t head = 0; head < task.num_kv_heads; ++head) {
    Carver of_known(heads[head].known);
    known[head] = carve_known(call, task.num_tokens, of_known);
  }
  add_segment(call, task, heads, 0, next);
  for (std::size_t head = 0; head < task.num_kv_heads; ++head) {
    take_segment(heads[head], num_rows, known[head]);
  }
  for (std::size_t segment = 1; segment < num_segments(task); ++segment) {
    add_segment(call, task, heads, segment, next);
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
  add_segment(call, task, heads, segment, nullptr);
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
