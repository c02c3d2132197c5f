// Attention over block tables: softmax(q k^T) v, tile by tile of the context (online softmax, arXiv
// 1805.02867; FlashAttention-2, arXiv 2307.08691), and segment by segment of some tiles, each from an
// empty state: so two threads may take two segments of one context (Flash-Decoding). They are joined
// in their order, whoever computed them.
//
// A tile is 64 positions of the context, counted from 0, whatever the size of KV blocks and whichever
// tokens are computed together. Both products are those of gemm.cpp, over panels that are made of the
// tile, so a token's bits depend on its context alone: positions past its own get the weight 0, and
// adding 0 times a number changes no sum.
#include "kernels.hpp"
#include "path_math.hpp"
#include "tile_packing.hpp"

namespace everbatch::EVERBATCH_PATH {

void gemm(const GemmCall& call, Range rows, Range pairs);

namespace {

constexpr std::size_t kTilePairs = kTilePositions / kPairColumns;
constexpr float kInfinity = __builtin_inff();
constexpr std::size_t kLineValues = 64 / sizeof(Bf16);

constexpr std::size_t round_up(std::size_t size, std::size_t step) {
  return (size + step - 1) / step * step;
}

// One thread's memory. R rows: tokens times the query heads that share a key-value head.
struct Scratch {
  Bf16* zeros;         // [D], in place of positions that nobody sees
  Bf16* key_panels;    // [4][D / 2][16][2]
  Bf16* value_panels;  // [D / 16][32][16][2]
  float* scores;       // [R, 64]
  Bf16* weights;       // [R, 64]
  std::size_t value_columns;
  // Of one key-value head of the task.
  Bf16* queries;     // [R, D]
  float* sums;       // [R, value_columns]
  float* largest;    // [R]
  float* totals;     // [R, lanes]
  std::byte* known;  // of the segments so far
};

// What some segments of a context give its rows.
struct Known {
  float* sums;     // [R, value_columns]
  float* largest;  // [R]
  float* totals;   // [R]
};

class Carver {
 public:
  explicit Carver(std::byte* memory) : memory_(memory) {}

  template <typename Element>
  Element* take(std::size_t count) {
    std::byte* taken = memory_ + used_;
    used_ += round_up(count * sizeof(Element), 64);
    return reinterpret_cast<Element*>(taken);
  }
  std::size_t used() const { return used_; }

 private:
  std::byte* memory_;
  std::size_t used_ = 0;
};

Known carve_known(const AttentionCall& call, std::size_t num_tokens, Carver& carver) {
  const std::size_t num_rows = num_tokens * (call.num_heads / call.num_kv_heads);
  Known known;
  known.sums = carver.take<float>(num_rows * round_up(call.head_dim, kPairColumns));
  known.largest = carver.take<float>(num_rows);
  known.totals = carver.take<float>(num_rows);
  return known;
}

void carve_head(const AttentionCall& call, std::size_t num_tokens, Carver& carver,
                Scratch& scratch) {
  const std::size_t num_rows = num_tokens * (call.num_heads / call.num_kv_heads);
  scratch.queries = carver.take<Bf16>(num_rows * call.head_dim);
  scratch.sums = carver.take<float>(num_rows * scratch.value_columns);
  scratch.largest = carver.take<float>(num_rows);
  scratch.totals = carver.take<float>(num_rows * kLanes);
  Carver of_known(nullptr);
  carve_known(call, num_tokens, of_known);
  scratch.known = carver.take<std::byte>(of_known.used());
}

// The memory of one of the heads of a task; what they share is the same for all.
Scratch carve(const AttentionCall& call, std::size_t num_tokens, std::size_t head,
              Carver& carver) {
  const std::size_t num_rows = num_tokens * (call.num_heads / call.num_kv_heads);
  const std::size_t head_dim = call.head_dim;
  Scratch scratch;
  scratch.value_columns = round_up(head_dim, kPairColumns);
  scratch.zeros = carver.take<Bf16>(head_dim);
  scratch.key_panels = carver.take<Bf16>(kTilePositions * head_dim);
  scratch.value_panels = carver.take<Bf16>(kTilePositions * scratch.value_columns);
  scratch.scores = carver.take<float>(num_rows * kTilePositions);
  scratch.weights = carver.take<Bf16>(num_rows * kTilePositions);
  for (std::size_t i = 0; i <= head; ++i) carve_head(call, num_tokens, carver, scratch);
  return scratch;
}

// Where the vectors [D] of a tile's positions lie; zeros past the last one that anybody sees.
struct TileRows {
  const Bf16* keys[kTilePositions];
  const Bf16* values[kTilePositions];
};

void find_rows(const AttentionCall& call, const AttentionTask& task, const Bf16* zeros,
               std::size_t first, std::size_t num_seen, TileRows& rows) {
  const std::size_t stride = call.num_kv_heads * call.head_dim;
  // Block by block, as a division costs more than all else that is done for a position here.
  std::size_t block = first / call.block_size, in_block = first % call.block_size;
  for (std::size_t i = 0; i < num_seen; ++block, in_block = 0) {
    const auto slot = static_cast<std::size_t>(task.block_table[block]) * call.block_size + in_block;
    std::size_t offset = slot * stride + task.kv_head * call.head_dim;
    for (; i < num_seen && in_block < call.block_size; ++i, ++in_block, offset += stride) {
      rows.keys[i] = call.keys + offset;
      rows.values[i] = call.values + offset;
    }
  }
  for (std::size_t i = num_seen; i < kTilePositions; ++i) rows.keys[i] = rows.values[i] = zeros;
}

// Ask for what positions [first, last) of the context hold of the task's heads, which comes from
// memory while something else is computed. Inline, as GCC drops calls of a function that does nothing
// but prefetch.
[[gnu::always_inline]] inline void fetch(const AttentionCall& call, const AttentionTask& task,
                                         std::size_t first, std::size_t last) {
  const std::size_t stride = call.num_kv_heads * call.head_dim;
  std::size_t block = first / call.block_size, in_block = first % call.block_size;
  for (std::size_t i = first; i < last; ++block, in_block = 0) {
    const auto slot = static_cast<std::size_t>(task.block_table[block]) * call.block_size + in_block;
    std::size_t offset = slot * stride + task.kv_head * call.head_dim;
    for (; i < last && in_block < call.block_size; ++i, ++in_block, offset += stride) {
      for (std::size_t value = 0; value < task.num_kv_heads * call.head_dim; value += kLineValues) {
        __builtin_prefetch(call.keys + offset + value, 0, 3);
        __builtin_prefetch(call.values + offset + value, 0, 3);
      }
    }
  }
}

// Scale the scores of a tile, in place; give the largest of them and of `largest`.
inline float scale_and_find_largest(float* __restrict scores, float scale, float largest) {
  float lanes[kLanes];
  for (std::size_t lane = 0; lane < kLanes; ++lane) lanes[lane] = largest;
  for (std::size_t first = 0; first < kTilePositions; first += kLanes) {
    for (std::size_t lane = 0; lane < kLanes; ++lane) {
      const float score = scores[first + lane] * scale;
      scores[first + lane] = score;
      // False for a NaN, which so stays out of here; the weights will have it.
      lanes[lane] = score > lanes[lane] ? score : lanes[lane];
    }
  }
  return join_lanes<kLanes>(lanes, [](float a, float b) { return b > a ? b : a; });
}

inline void exponentiate(const float* __restrict scores, float largest, Bf16* __restrict weights) {
  for (std::size_t i = 0; i < kTilePositions; ++i) weights[i] = to_bf16(exp_of(scores[i] - largest));
}

// totals = totals * shrink + weights, lane by lane.
inline void add_weights(const Bf16* __restrict weights, float shrink, float* __restrict totals) {
  for (std::size_t lane = 0; lane < kLanes; ++lane) totals[lane] *= shrink;
  for (std::size_t first = 0; first < kTilePositions; first += kLanes) {
    for (std::size_t lane = 0; lane < kLanes; ++lane) {
      totals[lane] += to_float(weights[first + lane]);
    }
  }
}

// Turn a row's scores of a tile into weights, and rescale what was summed before.
// Positions [0, num_seen) of the tile count; what is stored for the others may be anything.
void softmax_row(const AttentionCall& call, const Scratch& scratch, std::size_t row,
                 std::size_t num_seen) {
  float* scores = scratch.scores + row * kTilePositions;
  Bf16* weights = scratch.weights + row * kTilePositions;
  for (std::size_t i = num_seen; i < kTilePositions; ++i) scores[i] = -kInfinity;
  const float largest = scale_and_find_largest(scores, call.scale, scratch.largest[row]);
  // Of the first tile this is e ** -87 at most, times sums that are 0.
  const float shrink = exp_of(scratch.largest[row] - largest);
  scratch.largest[row] = largest;
  exponentiate(scores, largest, weights);
  for (std::size_t i = num_seen; i < kTilePositions; ++i) weights[i] = 0;
  // As rounded, which is what the product will use: so the weights sum to 1.
  add_weights(weights, shrink, scratch.totals + row * kLanes);
  float* sums = scratch.sums + row * scratch.value_columns;
  for (std::size_t i = 0; i < scratch.value_columns; ++i) sums[i] *= shrink;
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

// Add the tile of positions from `first` on, of which the last token sees `num_seen`.
void add_tile(const AttentionCall& call, const AttentionTask& task, const Scratch& scratch,
              std::size_t first, std::size_t num_seen) {
  const std::size_t group = call.num_heads / call.num_kv_heads;
  const std::size_t num_rows = task.num_tokens * group;
  const std::size_t num_columns = round_up(num_seen, kPairColumns);
  TileRows rows;
  find_rows(call, task, scratch.zeros, first, num_seen, rows);
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
    for (std::size_t head = 0; head < task.num_kv_heads; ++head) {
      // A part of the next tile, so that requests do not wait for each other.
      const std::size_t next = first + kTilePositions;
      fetch(call, task, smaller(context_end, next + head * kTilePositions / task.num_kv_heads),
            smaller(context_end, next + (head + 1) * kTilePositions / task.num_kv_heads));
      add_tile(call, of_head(task, head), heads[head], first,
               smaller(context_end - first, kTilePositions));
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
    for (std::size_t i = 0; i < columns; ++i) sums[i] = sums[i] * shrink + next_sums[i] * next_shrink;
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

}  // namespace

std::size_t attention_scratch(const AttentionCall& call, std::size_t num_tokens,
                              std::size_t num_kv_heads) {
  Carver carver(nullptr);
  carve(call, num_tokens, num_kv_heads - 1, carver);
  return carver.used();
}

std::size_t segment_bytes(const AttentionCall& call, std::size_t num_tokens) {
  Carver carver(nullptr);
  carve_known(call, num_tokens, carver);
  return carver.used();
}

void attend(const AttentionCall& call, const AttentionTask& task, std::byte* memory) {
  const std::size_t num_rows = num_rows_of(call, task);
  fetch(call, task, 0, smaller(task.first_position + task.num_tokens, kTilePositions));
  Scratch heads[kMaxHeadsTogether];
  Known known[kMaxHeadsTogether];
  for (std::size_t head = 0; head < task.num_kv_heads; ++head) {
    Carver carver(memory);
    heads[head] = carve(call, task.num_tokens, head, carver);
    Carver of_known(heads[head].known);
    known[head] = carve_known(call, task.num_tokens, of_known);
    start(call, of_head(task, head), heads[head]);
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
                    std::byte* memory, std::byte* known_memory) {
  Carver carver(memory), of_known(known_memory);
  const Scratch scratch = carve(call, task.num_tokens, 0, carver);
  start(call, task, scratch);
  add_segment(call, task, &scratch, segment);
  take_segment(scratch, num_rows_of(call, task), carve_known(call, task.num_tokens, of_known));
}

void join_segments(const AttentionCall& call, const AttentionTask& task, std::byte* memory) {
  Carver first(memory);
  const Known known = carve_known(call, task.num_tokens, first);
  for (std::size_t segment = 1; segment < num_segments(task); ++segment) {
    Carver carver(memory + segment * segment_bytes(call, task.num_tokens));
    join_segment(call, task, segment, carve_known(call, task.num_tokens, carver), known);
  }
  write_rows(call, task, known);
}

}  // namespace everbatch::EVERBATCH_PATH
