// A weight matrix in the order in which products read it, packed once.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "aligned_buffer.hpp"
#include "kernels.hpp"
#include "kv_ahead.hpp"
#include "runtime.hpp"

namespace everbatch {

// How values are stored. A further format is a name here, a way to pack, and a product in each path.
enum class WeightFormat { kBf16 };

// A matrix [num_outputs, num_inputs] of a checkpoint, row-major, and its bias or null.
struct MatrixPart {
  const float* values;
  std::size_t num_outputs;
  std::size_t num_inputs;
  const float* bias;
};

enum class Arrangement {
  kStacked,      // the outputs of one part after those of the other
  kInterleaved,  // two parts of one size, 16 outputs of the first beside 16 of the second
};

// The largest output of a row, the first of equal ones; where not all are finite numbers, any.
struct Largest {
  std::int32_t output;
  bool all_finite;
};

class PackedMatrix {
 public:
  // The parts have equal num_inputs; either all have a bias or none has.
  PackedMatrix(Runtime& runtime, const std::vector<MatrixPart>& parts, Arrangement arrangement);

  // out float32 [num_rows, out_stride] = x * matrix + bias, or added to what is there.
  // x: bf16 [num_rows, x_stride], zero past num_inputs up to an even count.
  // ahead: what is asked for meanwhile, or null.
  void multiply(Runtime& runtime, const Bf16* x, std::size_t x_stride, std::size_t num_rows,
                float* out, std::size_t out_stride, bool is_adding,
                KvAhead* ahead = nullptr) const;

  // out bf16 [num_rows, out_stride] = silu(x * first part) * (x * second part); interleaved only.
  void silu_times(Runtime& runtime, const Bf16* x, std::size_t x_stride, std::size_t num_rows,
                  Bf16* out, std::size_t out_stride, KvAhead* ahead = nullptr) const;

  // out [num_rows] = the largest output of each row of x * matrix + bias, whose bits are those that
  // multiply gives; stacked only. The product is never in memory.
  void find_largest(Runtime& runtime, const Bf16* x, std::size_t x_stride, std::size_t num_rows,
                    Largest* out) const;

  // out [num_inputs] = the weights of one output; for embeddings, whose outputs are tokens.
  void read_output(std::size_t output, float* out) const;

  WeightFormat format() const { return WeightFormat::kBf16; }
  Arrangement arrangement() const { return arrangement_; }
  // Of all parts; an interleaved matrix gives half as many values.
  std::size_t num_outputs() const { return num_outputs_; }
  std::size_t num_inputs() const { return num_inputs_; }
  // Of a product with so many rows: rows times panels times pairs of inputs.
  std::size_t work(std::size_t num_rows) const { return num_rows * num_panels_ * num_k_pairs_; }
  std::size_t num_bytes() const { return panel_bytes() + bias_.num_bytes(); }

 private:
  struct Source {
    const float* values;  // of one output, or null: this column is padding
    float bias;
  };

  // Pieces of a result: rows by panels.
  struct Cut {
    std::size_t block_rows;
    std::size_t num_blocks;
    std::size_t panels;
    std::size_t num_pieces;  // of a block of rows
  };

  Source source_of(const std::vector<MatrixPart>& parts, std::size_t column) const;
  void pack_panel(const std::vector<MatrixPart>& parts, std::size_t panel);
  Cut cut_for(const Runtime& runtime, std::size_t num_rows) const;
  template <typename Task>
  void run_pieces(Runtime& runtime, const Cut& cut, Task&& task) const;
  void multiply_by_path(Runtime& runtime, const GemmCall& call, std::size_t num_rows,
                        KvAhead* ahead) const;
  GemmCall call_of(const Bf16* x, std::size_t x_stride) const;
  std::size_t panel_values() const { return num_k_pairs_ * kPanelPairValues; }
  std::size_t panel_bytes() const { return num_panels_ * panel_values() * sizeof(Bf16); }

  Arrangement arrangement_;
  std::size_t num_outputs_ = 0;
  std::size_t num_inputs_ = 0;
  std::size_t num_k_pairs_ = 0;
  std::size_t num_panels_ = 0;
  std::shared_ptr<Bf16> panels_;  // [num_panels, panel_values]
  AlignedBuffer<float> bias_;  // in the order of columns; empty without
};

}  // namespace everbatch
