// The functions of one path; compiled once for each.
#include "kernels.hpp"

namespace everbatch::EVERBATCH_PATH {

void gemm(const GemmCall& call, Range rows, Range pairs);
std::size_t attention_scratch(const AttentionCall& call, std::size_t num_tokens);
void attend(const AttentionCall& call, const AttentionTask& task, std::byte* scratch);
void rms_norm(const float* x, const float* weight, std::size_t size, float eps, Bf16* out);
void rope_and_write(const RopeCall& call, Range tokens);

extern const PathKernels kKernels;
const PathKernels kKernels = {gemm, attention_scratch, attend, rms_norm, rope_and_write};

}  // namespace everbatch::EVERBATCH_PATH
