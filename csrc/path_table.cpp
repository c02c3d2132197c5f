// The functions of one path; compiled once for each.
#include "kernels.hpp"

namespace everbatch::EVERBATCH_PATH {

void gemm(const GemmCall& call, Range rows, Range panels);
std::size_t attention_scratch(const AttentionCall& call, std::size_t num_tokens,
                              std::size_t num_kv_heads);
void attend(const AttentionCall& call, const AttentionTask& task, const AttentionTask* next,
            std::byte* scratch);
std::size_t segment_bytes(const AttentionCall& call, std::size_t num_tokens,
                          std::size_t num_kv_heads);
void attend_segment(const AttentionCall& call, const AttentionTask& task, std::size_t segment,
                    std::byte* scratch, std::byte* out);
void join_segments(const AttentionCall& call, const AttentionTask& task, std::byte* segments);
void rms_norm(const float* x, const float* weight, std::size_t size, float eps, Bf16* out);
void rope_and_write(const RopeCall& call, Range tokens);
RowExtremes find_extremes(const float* values, std::size_t size);
std::int64_t weigh(const WeighCall& call, float* weights);
std::int64_t sum_weights(const float* weights, std::size_t size);
void find_buckets(const WeighCall& call, Bucket* buckets);
std::size_t collect(const Bucket* buckets, std::size_t size, Bucket wanted, std::int32_t* ids);
void drop_from(const Bucket* buckets, std::size_t size, Bucket first, float* weights);
std::size_t find_in_cumulative(const float* weights, std::size_t size, std::int64_t target);

extern const PathKernels kKernels;
const PathKernels kKernels = {
    gemm,          attention_scratch, attend,        segment_bytes,     attend_segment,
    join_segments, rms_norm,          rope_and_write, find_extremes,    weigh,
    sum_weights,   find_buckets,      collect,       drop_from,         find_in_cumulative};

}  // namespace everbatch::EVERBATCH_PATH
