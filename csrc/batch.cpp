// What a batch must be, so that no kernel reads or writes outside an array; and attention over it.
#include <algorithm>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "network.hpp"
#include "shares.hpp"

namespace everbatch {
namespace {

// Tokens of a prompt that look at one key-value head together: with their heads so many rows of a
// product, that what is packed for them pays.
constexpr std::size_t kRowsTogether = 96;
// A task longer than one of so many equal parts for each thread is cut into its segments, if what
// they give takes no more than this.
constexpr std::size_t kPartsPerThread = 8;
// Where there are so many segments, the heads of a decode are one task.
constexpr std::size_t kSegmentsPerThread = 4;
constexpr std::size_t kMaxSegmentBytes = 4 << 20;

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

// A task, or one segment of it.
struct Part {
  std::size_t task;
  std::size_t segment;
  bool is_whole;
  std::size_t offset;  // of the memory for what a segment gives
};

// Bytes of one thread's memory for tasks of at most `most_tokens` tokens.
std::size_t thread_bytes(const Runtime& runtime, const AttentionCall& call,
                         std::size_t most_tokens) {
  const std::size_t heads_together = std::min(call.num_kv_heads, kMaxHeadsTogether);
  return round_up(std::max(runtime.kernels.attention_scratch(call, most_tokens, 1),
                           runtime.kernels.attention_scratch(call, 1, heads_together)),
                  kLineBytes);
}

std::size_t tokens_together(const AttentionCall& call) {
  return std::max<std::size_t>(kRowsTogether / (call.num_heads / call.num_kv_heads), 1);
}

std::size_t context_of(const AttentionTask& task) { return task.first_position + task.num_tokens; }

// Run the tasks, long ones cut where there are too few for all threads; the cut changes no bit.
// first_tokens: of each thread's share, and the end of the last one.
void run_tasks(Runtime& runtime, const AttentionCall& call, const std::vector<AttentionTask>& tasks,
               const std::vector<std::size_t>& first_tokens, std::size_t most_tokens,
               AlignedBuffer<std::byte>& scratch) {
  const auto num_threads = static_cast<std::size_t>(runtime.pool.num_threads());
  const std::size_t bytes = thread_bytes(runtime, call, most_tokens);
  std::size_t total = 0, end = bytes * num_threads;
  for (const AttentionTask& task : tasks) total += context_of(task) * task.num_tokens;
  std::vector<Part> parts;
  std::vector<Part> cut;
  std::vector<std::size_t> starts{0};
  for (std::size_t index = 0; index < tasks.size(); ++index) {
    const AttentionTask& task = tasks[index];
    while (task.first_token >= first_tokens[starts.size()]) starts.push_back(parts.size());
    const std::size_t size =
        runtime.kernels.segment_bytes(call, task.num_tokens, task.num_kv_heads);
    const std::size_t count = num_segments(task);
    const bool is_long =
        context_of(task) * task.num_tokens * num_threads * kPartsPerThread > total;
    if (num_threads == 1 || count == 1 || !is_long || size * count > kMaxSegmentBytes) {
      parts.push_back({index, 0, true, 0});
      continue;
    }
    cut.push_back({index, 0, false, end});
    for (std::size_t segment = 0; segment < count; ++segment, end += size) {
      parts.push_back({index, segment, false, end});
    }
  }
  starts.resize(num_threads + 1, parts.size());
  Shares shares(std::move(starts));
  scratch.reserve(end);
  runtime.pool.run(parts.size(), [&](std::size_t, int thread) {
    const Shares::Taken taken = shares.take(static_cast<std::size_t>(thread));
    const Part& part = parts[taken.index];
    std::byte* memory = scratch.data() + bytes * static_cast<std::size_t>(thread);
    if (part.is_whole) {
      const AttentionTask* next = taken.has_next ? &tasks[parts[taken.index + 1].task] : nullptr;
      runtime.kernels.attend(call, tasks[part.task], next, memory);
    } else {
      runtime.kernels.attend_segment(call, tasks[part.task], part.segment, memory,
                                     scratch.data() + part.offset);
    }
  });
  for (const Part& part : cut) {
    runtime.kernels.join_segments(call, tasks[part.task], scratch.data() + part.offset);
  }
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

std::vector<std::size_t> rows_of_threads(const Batch& batch, std::size_t num_threads) {
  std::vector<std::size_t> ends;  // of the work of each row
  std::size_t total = 0;
  for (std::size_t row = 0; row < batch.num_rows(); ++row) {
    const auto context_len = static_cast<std::size_t>(batch.context_lens[row]);
    const std::int32_t num_tokens = batch.cu_seqlens_q[row + 1] - batch.cu_seqlens_q[row];
    total += context_len * static_cast<std::size_t>(num_tokens);
    ends.push_back(total);
  }
  std::vector<std::size_t> first_rows{0};
  for (std::size_t thread = 1; thread < num_threads; ++thread) {
    const auto end = std::lower_bound(ends.begin(), ends.end(), total * thread / num_threads);
    first_rows.push_back(
        std::min(static_cast<std::size_t>(end - ends.begin()) + 1, batch.num_rows()));
  }
  first_rows.push_back(batch.num_rows());
  return first_rows;
}

std::size_t max_attention_bytes(const Runtime& runtime, const AttentionCall& call,
                                std::size_t num_tokens, std::size_t context_len) {
  const auto num_threads = static_cast<std::size_t>(runtime.pool.num_threads());
  const std::size_t most_tokens = std::min(tokens_together(call), num_tokens);
  const std::size_t bytes = thread_bytes(runtime, call, most_tokens) * num_threads;
  if (num_threads == 1) return bytes;
  const std::size_t heads_together = std::min(call.num_kv_heads, kMaxHeadsTogether);
  const std::size_t size = std::max(runtime.kernels.segment_bytes(call, most_tokens, 1),
                                    runtime.kernels.segment_bytes(call, 1, heads_together));
  // Each task that is cut is longer than one of so many equal parts of all, so there are fewer.
  const std::size_t num_cut = num_threads * kPartsPerThread - 1;
  return bytes +
         num_cut * std::min(size * div_ceil(context_len, kSegmentPositions), kMaxSegmentBytes);
}

void paged_attention(Runtime& runtime, const AttentionCall& call, const Batch& batch,
                     AlignedBuffer<std::byte>& scratch) {
  const std::size_t most_tokens = tokens_together(call);
  std::vector<AttentionTask> tasks;
  std::size_t longest = 1;
  const auto num_threads = static_cast<std::size_t>(runtime.pool.num_threads());
  std::size_t all_segments = 0;
  for (const std::int32_t context_len : batch.context_lens) {
    all_segments += div_ceil(static_cast<std::size_t>(context_len), kSegmentPositions);
  }
  const bool is_much = num_threads == 1 || all_segments >= kSegmentsPerThread * num_threads;
  for (std::size_t row = 0; row < batch.num_rows(); ++row) {
    const auto row_first = static_cast<std::size_t>(batch.cu_seqlens_q[row]);
    const auto row_last = static_cast<std::size_t>(batch.cu_seqlens_q[row + 1]);
    for (std::size_t first = row_first; first < row_last; first += most_tokens) {
      const std::size_t num_tokens = std::min(most_tokens, row_last - first);
      longest = std::max(longest, num_tokens);
      // A token alone looks at little, and what one head needs lies beside what the next one does.
      const std::size_t together =
          num_tokens == 1 && is_much ? std::min(call.num_kv_heads, kMaxHeadsTogether) : 1;
      for (std::size_t head = 0; head < call.num_kv_heads; head += together) {
        tasks.push_back({batch.block_tables.data() + row * batch.max_blocks(), first, num_tokens,
                         static_cast<std::size_t>(batch.positions[first]), head,
                         std::min(together, call.num_kv_heads - head)});
      }
    }
  }
  std::vector<std::size_t> first_tokens;
  for (const std::size_t row : rows_of_threads(batch, num_threads)) {
    first_tokens.push_back(static_cast<std::size_t>(batch.cu_seqlens_q[row]));
  }
  run_tasks(runtime, call, tasks, first_tokens, longest, scratch);
}

}  // namespace everbatch
