#include "packed_matrix.hpp"

#include <algorithm>
#include <limits>
#include <utility>

#include "shares.hpp"

namespace everbatch {
namespace {

// So many rows of x at once, that they stay in a core's L2 cache while the weights stream by.
constexpr std::size_t kRowBlockBytes = 1 << 20;
constexpr std::size_t kMaxBlockRows = 480;
// Rows of a block are a multiple of every path's tile (12, 4 and 2).
constexpr std::size_t kRowStep = 12;
// At least so many pieces for each thread, where there are panels enough: one thread that is
// interrupted does not keep the others waiting.
constexpr std::size_t kPiecesPerThread = 8;
// No piece is larger, so a matrix of many panels, such as the head, is cut into more.
constexpr std::size_t kMaxPiecePanels = 16;

// Lanes joined: a sixteenth of the memory, as there is one for each piece and row.
struct LargestOfPiece {
  float value;
  std::int32_t column;
  float spoilt;
};

LargestLanes nothing_seen() {
  LargestLanes lanes{};
  std::fill_n(lanes.values, kHalfColumns, -std::numeric_limits<float>::infinity());
  return lanes;
}

// The first column of the largest ones.
LargestOfPiece join(const LargestLanes& lanes) {
  LargestOfPiece largest{-std::numeric_limits<float>::infinity(), 0, 0.0f};
  for (std::size_t lane = 0; lane < kHalfColumns; ++lane) {
    largest.spoilt += lanes.spoilt[lane];
    const float value = lanes.values[lane];
    if (value > largest.value ||
        (value == largest.value && lanes.columns[lane] < largest.column)) {
      largest.value = value;
      largest.column = lanes.columns[lane];
    }
  }
  return largest;
}

std::size_t rows_of_a_block(std::size_t num_k_pairs) {
  const std::size_t fitting = kRowBlockBytes / (2 * sizeof(Bf16) * num_k_pairs);
  return std::clamp(fitting / kRowStep * kRowStep, kRowStep, kMaxBlockRows);
}

}  // namespace

PackedMatrix::PackedMatrix(Runtime& runtime, const std::vector<MatrixPart>& parts,
                           Arrangement arrangement)
    : arrangement_(arrangement), num_inputs_(parts.at(0).num_inputs) {
  for (const MatrixPart& part : parts) num_outputs_ += part.num_outputs;
  num_k_pairs_ = div_ceil(num_inputs_, 2);
  num_panels_ = arrangement == Arrangement::kInterleaved
                    ? div_ceil(parts[0].num_outputs, kHalfColumns)
                    : div_ceil(num_outputs_, kPanelColumns);
  const auto memory = runtime.weights.take(panel_bytes());
  panels_ = {memory, reinterpret_cast<Bf16*>(memory.get())};
  if (parts[0].bias != nullptr) bias_ = AlignedBuffer<float>(num_panels_ * kPanelColumns);
  runtime.pool.run(num_panels_, [&](std::size_t panel, int) { pack_panel(parts, panel); });
}

PackedMatrix::Source PackedMatrix::source_of(const std::vector<MatrixPart>& parts,
                                             std::size_t column) const {
  std::size_t part = 0, output = column;
  if (arrangement_ == Arrangement::kInterleaved) {
    part = column / kHalfColumns % 2;
    output = column / kPanelColumns * kHalfColumns + column % kHalfColumns;
  } else {
    while (part + 1 < parts.size() && output >= parts[part].num_outputs) {
      output -= parts[part++].num_outputs;
    }
  }
  const MatrixPart& found = parts[part];
  if (output >= found.num_outputs) return {nullptr, 0.0f};
  return {found.values + output * found.num_inputs,
          found.bias != nullptr ? found.bias[output] : 0.0f};
}

void PackedMatrix::pack_panel(const std::vector<MatrixPart>& parts, std::size_t panel) {
  Bf16* out = panels_.get() + panel * panel_values();
  for (std::size_t lane = 0; lane < kPanelColumns; ++lane) {
    const std::size_t column = panel * kPanelColumns + lane;
    const Source source = source_of(parts, column);
    if (source.values == nullptr) continue;
    if (bias_.size() != 0) bias_.data()[column] = source.bias;
    for (std::size_t k = 0; k < num_inputs_; ++k) {
      out[k / 2 * kPanelPairValues + 2 * lane + k % 2] = to_bf16(source.values[k]);
    }
  }
}

GemmCall PackedMatrix::call_of(const Bf16* x, std::size_t x_stride) const {
  GemmCall call{};
  call.x = x;
  call.x_stride = x_stride;
  call.panels = panels_.get();
  call.panel_stride = panel_values();
  call.num_k_pairs = num_k_pairs_;
  call.bias = bias_.size() != 0 ? bias_.data() : nullptr;
  return call;
}

// Call task(piece, thread) for each piece of a product. Few rows wait for their weights, so each thread
// takes pieces that lie one after the other in memory; with many, all read the same weights for a block
// of rows at about the same time.
template <typename Task>
void PackedMatrix::run_pieces(Runtime& runtime, const Cut& cut, Task&& task) const {
  const std::size_t num_pieces = cut.num_blocks * cut.num_pieces;
  if (cut.num_blocks > 1 || !runtime.optimisations.has_own_pieces) {
    runtime.pool.run(num_pieces, task);
    return;
  }
  const auto num_threads = static_cast<std::size_t>(runtime.pool.num_threads());
  std::vector<std::size_t> starts;
  for (std::size_t thread = 0; thread <= num_threads; ++thread) {
    starts.push_back(num_pieces * thread / num_threads);
  }
  Shares shares(std::move(starts));
  runtime.pool.run(num_pieces, [&](std::size_t, int thread) {
    task(shares.take(static_cast<std::size_t>(thread)).index, thread);
  });
}

void PackedMatrix::multiply(Runtime& runtime, const Bf16* x, std::size_t x_stride,
                            std::size_t num_rows, float* out, std::size_t out_stride,
                            bool is_adding, KvAhead* ahead) const {
  GemmCall call = call_of(x, x_stride);
  call.output = is_adding ? GemmOutput::kAdd : GemmOutput::kStore;
  call.out = out;
  call.out_stride = out_stride;
  call.num_columns = num_outputs_;
  multiply_by_path(runtime, call, num_rows, ahead);
}

void PackedMatrix::silu_times(Runtime& runtime, const Bf16* x, std::size_t x_stride,
                              std::size_t num_rows, Bf16* out, std::size_t out_stride,
                              KvAhead* ahead) const {
  GemmCall call = call_of(x, x_stride);
  call.output = GemmOutput::kSiluTimes;
  call.out = out;
  call.out_stride = out_stride;
  call.num_columns = num_outputs_ / 2;
  multiply_by_path(runtime, call, num_rows, ahead);
}

void PackedMatrix::find_largest(Runtime& runtime, const Bf16* x, std::size_t x_stride,
                                std::size_t num_rows, Largest* out) const {
  const Cut cut = cut_for(runtime, num_rows);
  // What each piece of columns has of each row.
  std::vector<LargestOfPiece> found(cut.num_pieces * num_rows);
  run_pieces(runtime, cut, [&](std::size_t index, int) {
    const std::size_t row = index / cut.num_pieces * cut.block_rows;
    const std::size_t piece = index % cut.num_pieces;
    const std::size_t count = std::min(num_rows - row, cut.block_rows);
    LargestLanes lanes[kMaxBlockRows];
    std::fill_n(lanes, count, nothing_seen());
    GemmCall call = call_of(x + row * x_stride, x_stride);
    call.output = GemmOutput::kLargest;
    call.out = lanes;
    call.num_columns = num_outputs_;
    runtime.kernels.gemm(call, {0, count},
                         {piece * cut.panels, std::min(num_panels_, (piece + 1) * cut.panels)});
    std::transform(lanes, lanes + count, &found[piece * num_rows + row], join);
  });
  for (std::size_t row = 0; row < num_rows; ++row) {
    LargestOfPiece largest = found[row];
    for (std::size_t piece = 1; piece < cut.num_pieces; ++piece) {
      const LargestOfPiece& next = found[piece * num_rows + row];
      largest.spoilt += next.spoilt;
      // The columns of a later piece are later ones.
      if (next.value > largest.value) largest.value = next.value, largest.column = next.column;
    }
    out[row] = {largest.column, largest.spoilt == 0.0f};
  }
}

PackedMatrix::Cut PackedMatrix::cut_for(const Runtime& runtime, std::size_t num_rows) const {
  Cut cut;
  cut.block_rows = rows_of_a_block(num_k_pairs_);
  cut.num_blocks = div_ceil(num_rows, cut.block_rows);
  const auto num_threads = static_cast<std::size_t>(runtime.pool.num_threads());
  const std::size_t blocks = std::max<std::size_t>(cut.num_blocks, 1);
  cut.panels = std::clamp<std::size_t>(num_panels_ * blocks / (num_threads * kPiecesPerThread), 1,
                                       kMaxPiecePanels);
  cut.num_pieces = div_ceil(num_panels_, cut.panels);
  return cut;
}

// Cut the result into pieces of rows and columns; the cut does not change a bit of it.
void PackedMatrix::multiply_by_path(Runtime& runtime, const GemmCall& call,
                                    std::size_t num_rows, KvAhead* ahead) const {
  const Cut cut = cut_for(runtime, num_rows);
  run_pieces(runtime, cut, [&](std::size_t index, int thread) {
    const std::size_t row = index / cut.num_pieces * cut.block_rows;
    const std::size_t panel = index % cut.num_pieces * cut.panels;
    const Range rows{row, std::min(num_rows, row + cut.block_rows)};
    const Range panels{panel, std::min(num_panels_, panel + cut.panels)};
    GemmCall piece = call;
    if (ahead != nullptr) {
      const std::size_t size = (rows.last - rows.first) * (panels.last - panels.first);
      piece.ahead = ahead->take(thread, size * num_k_pairs_);
    }
    runtime.kernels.gemm(piece, rows, panels);
  });
}

void PackedMatrix::read_output(std::size_t output, float* out) const {
  const Bf16* panel = panels_.get() + output / kPanelColumns * panel_values();
  const std::size_t lane = output % kPanelColumns;
  for (std::size_t k = 0; k < num_inputs_; ++k) {
    out[k] = to_float(panel[k / 2 * kPanelPairValues + 2 * lane + k % 2]);
  }
}

}  // namespace everbatch
