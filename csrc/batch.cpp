// What a batch must be, so that no kernel reads or writes outside an array; and attention over it.
#include <cstdint>
#include <stdexcept>
#include <string>

#include "network.hpp"

namespace everbatch {
namespace {

// Tokens of a prompt that look at one key-value head together: with their heads so many rows of a
// product, that what is packed for them pays.
constexpr std::size_t kRowsTogether = 96;

[[noreturn]] void refuse(const std::string& what) {
  throw std::invalid_argument("batch: " + what);
}

void check_size(std::size_t size, std::size_t expected, const char* name) {
  if (size == expected) return;
  refuse(std::string(name) + " has " + std::to_string(size) + " entries, expected " +
         std::to_string(expected));
}

void check_index(std::int32_t index, std::size_t limit, const char* name) {
  if (index >= 0 && static_cast<std::size_t>(index) < limit) return;
  refuse(std::string(name) + " holds " + std::to_string(index) + ", it must lie in [0, " +
         std::to_string(limit) + ")");
}

}  // namespace

void Batch::check(std::size_t vocab_size, std::size_t num_blocks, std::size_t block_size) const {
  if (num_tokens() == 0) refuse("it has no token");
  if (num_rows() == 0) refuse("it has no row");
  check_size(positions.size(), num_tokens(), "positions");
  check_size(slot_mapping.size(), num_tokens(), "slot_mapping");
  check_size(cu_seqlens_q.size(), num_rows() + 1, "cu_seqlens_q");
  if (cu_seqlens_q.front() != 0) refuse("cu_seqlens_q does not start with 0");
  if (static_cast<std::size_t>(cu_seqlens_q.back()) != num_tokens()) {
    refuse("cu_seqlens_q does not end with the number of tokens");
  }
  for (const std::int32_t id : input_ids) check_index(id, vocab_size, "input_ids");
  for (const std::int32_t slot : slot_mapping) {
    check_index(slot, num_blocks * block_size, "slot_mapping");
  }
  for (const std::int32_t row : logit_rows) check_index(row, num_tokens(), "logit_rows");
  if (logit_rows.size() > num_tokens()) refuse("logit_rows has more entries than there are tokens");
  for (std::size_t row = 0; row < num_rows(); ++row) {
    const std::int64_t first = cu_seqlens_q[row], last = cu_seqlens_q[row + 1];
    const std::int64_t context_len = context_lens[row];
    if (last <= first) refuse("row " + std::to_string(row) + " has no token");
    if (last > cu_seqlens_q.back()) refuse("cu_seqlens_q does not ascend");
    if (context_len < last - first) {
      refuse("the context of row " + std::to_string(row) + " is shorter than its own tokens");
    }
    for (std::int64_t token = first; token < last; ++token) {
      if (positions[static_cast<std::size_t>(token)] != context_len - last + token) {
        refuse("positions of row " + std::to_string(row) + " are not the last ones of its context");
      }
    }
    const std::size_t used = div_ceil(static_cast<std::size_t>(context_len), block_size);
    if (used > max_blocks()) refuse("block_tables is too narrow for the longest context");
    for (std::size_t block = 0; block < used; ++block) {
      check_index(block_tables[row * max_blocks() + block], num_blocks, "block_tables");
    }
  }
}

void paged_attention(Runtime& runtime, const AttentionCall& call, const Batch& batch,
                     AlignedBuffer<std::byte>& scratch) {
  const std::size_t group = call.num_heads / call.num_kv_heads;
  const std::size_t most_tokens = std::max<std::size_t>(kRowsTogether / group, 1);
  std::vector<AttentionTask> tasks;
  std::size_t longest = 1;
  for (std::size_t row = 0; row < batch.num_rows(); ++row) {
    const auto row_first = static_cast<std::size_t>(batch.cu_seqlens_q[row]);
    const auto row_last = static_cast<std::size_t>(batch.cu_seqlens_q[row + 1]);
    for (std::size_t first = row_first; first < row_last; first += most_tokens) {
      const std::size_t num_tokens = std::min(most_tokens, row_last - first);
      longest = std::max(longest, num_tokens);
      for (std::size_t kv_head = 0; kv_head < call.num_kv_heads; ++kv_head) {
        tasks.push_back({batch.block_tables.data() + row * batch.max_blocks(), first, num_tokens,
                         static_cast<std::size_t>(batch.positions[first]), kv_head});
      }
    }
  }
  const std::size_t bytes = runtime.kernels.attention_scratch(call, longest);
  scratch.reserve(bytes * static_cast<std::size_t>(runtime.pool.num_threads()));
  runtime.pool.run(tasks.size(), [&](std::size_t index, int thread) {
    runtime.kernels.attend(call, tasks[index],
                           scratch.data() + bytes * static_cast<std::size_t>(thread));
  });
}

}  // namespace everbatch
