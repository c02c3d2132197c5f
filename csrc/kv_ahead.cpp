#include "kv_ahead.hpp"

#include <algorithm>
#if defined(__unix__)
#include <unistd.h>
#endif

#include "network.hpp"

namespace everbatch {
namespace {

// Products of fewer rows wait for their weights.
constexpr std::size_t kMinRows = 32;
// A line is asked for in so much work on a product, in rows times panels times pairs of inputs: every
// 48 cycles of the widest path, which at 3 GHz is 4 GB/s a thread.
constexpr std::size_t kWorkPerLine = 24;
// A block is asked for in pieces of so many lines, so that few fit between two products.
constexpr std::size_t kPieceLines = 64;

// How much is asked for at most: what comes first should still be there when it is read, and weights
// and results need room, too. Nothing where the size of the last cache is not known.
std::size_t most_bytes() {
#if defined(_SC_LEVEL3_CACHE_SIZE)
  return static_cast<std::size_t>(std::max(sysconf(_SC_LEVEL3_CACHE_SIZE), 0L)) / 3;
#else
  return 0;
#endif
}

}  // namespace

KvAhead::KvAhead(const Runtime& runtime, const Batch& batch, const KvView& kv,
                 std::size_t slot_values)
    : keys_(reinterpret_cast<const std::byte*>(kv.keys)),
      values_(reinterpret_cast<const std::byte*>(kv.values)),
      slot_bytes_(slot_values * sizeof(Bf16)),
      layer_bytes_(kv.num_blocks * kv.block_size * slot_bytes_),
      threads_(static_cast<std::size_t>(runtime.pool.num_threads())) {
  if (batch.num_tokens() < kMinRows || !runtime.optimisations.has_kv_ahead) return;
  const std::vector<std::size_t> first_rows = rows_of_threads(batch, threads_.size());
  const std::size_t most_lines = most_bytes() / kLineBytes / threads_.size();
  for (std::size_t thread = 0; thread < threads_.size(); ++thread) {
    for (std::size_t row = first_rows[thread]; row < first_rows[thread + 1]; ++row) {
      add_row(batch, kv, row, most_lines, threads_[thread]);
    }
  }
}

void KvAhead::add_row(const Batch& batch, const KvView& kv, std::size_t row,
                      std::size_t most_lines, Thread& thread) const {
  const std::int32_t* table = batch.block_tables.data() + row * batch.max_blocks();
  const auto context_len = static_cast<std::size_t>(batch.context_lens[row]);
  for (std::size_t first = 0; first < context_len; first += kv.block_size) {
    const auto block = static_cast<std::size_t>(table[first / kv.block_size]);
    const std::size_t start = block * kv.block_size * slot_bytes_;
    const std::size_t num_slots = std::min(kv.block_size, context_len - first);
    std::size_t num_lines = div_ceil(num_slots * slot_bytes_, kLineBytes);
    for (std::size_t offset = start; num_lines > 0; offset += kPieceLines * kLineBytes) {
      const std::size_t count = std::min(num_lines, kPieceLines);
      if (thread.num_lines + 2 * count > most_lines) return;
      thread.blocks.push_back({offset, count});
      thread.num_lines += 2 * count;
      num_lines -= count;
    }
  }
}

void KvAhead::aim(std::size_t layer, std::size_t work_after) {
  lines_after_ = work_after / threads_.size() / kWorkPerLine;
  if (layer == layer_) return;
  layer_ = layer;
  for (Thread& thread : threads_) thread.next = thread.num_asked = 0;
}

BlocksAhead KvAhead::take(int thread, std::size_t work) {
  Thread& own = threads_[static_cast<std::size_t>(thread)];
  const std::size_t first = own.next;
  const std::size_t until =
      std::min(own.num_asked + work / kWorkPerLine,
               own.num_lines - std::min(own.num_lines, lines_after_));
  while (own.next < own.blocks.size() && own.num_asked < until) {
    own.num_asked += 2 * own.blocks[own.next++].num_lines;
  }
  const std::size_t layer_start = layer_ * layer_bytes_;
  return {keys_ + layer_start, values_ + layer_start, own.blocks.data() + first, own.next - first};
}

}  // namespace everbatch
