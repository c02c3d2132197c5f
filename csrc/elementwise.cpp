// What is done to one token at a time: norms, rotation, and writing keys and values to their slots.
#include "kernels.hpp"
#include "path_math.hpp"

namespace everbatch::EVERBATCH_PATH {
namespace {

// 1 / sqrt(mean(x ** 2) + eps).
float inverse_root_mean_square(const float* x, std::size_t size, float eps) {
  float lanes[kLanes] = {};
  std::size_t index = 0;
  for (; index + kLanes <= size; index += kLanes) {
    for (std::size_t lane = 0; lane < kLanes; ++lane) {
      lanes[lane] += x[index + lane] * x[index + lane];
    }
  }
  for (std::size_t lane = 0; index < size; ++index, ++lane) lanes[lane] += x[index] * x[index];
  return 1.0f / __builtin_sqrtf(sum_of_lanes(lanes) / static_cast<float>(size) + eps);
}

// One head [D]: norm, if there is one, and rotation of the pairs (i, i + D/2).
void rotate_head(const RopeCall& call, const float* head, const float* norm, std::size_t position,
                 Bf16* out) {
  const std::size_t half = call.head_dim / 2;
  const float* cos = call.cos + position * half;
  const float* sin = call.sin + position * half;
  if (norm == nullptr) {
    for (std::size_t i = 0; i < half; ++i) {
      const float first = head[i], second = head[i + half];
      out[i] = to_bf16(first * cos[i] - second * sin[i]);
      out[i + half] = to_bf16(second * cos[i] + first * sin[i]);
    }
    return;
  }
  const float inverse = inverse_root_mean_square(head, call.head_dim, call.eps);
  for (std::size_t i = 0; i < half; ++i) {
    const float first = head[i] * inverse * norm[i];
    const float second = head[i + half] * inverse * norm[i + half];
    out[i] = to_bf16(first * cos[i] - second * sin[i]);
    out[i + half] = to_bf16(second * cos[i] + first * sin[i]);
  }
}

}  // namespace

void rms_norm(const float* x, const float* weight, std::size_t size, float eps, Bf16* out) {
  const float inverse = inverse_root_mean_square(x, size, eps);
  for (std::size_t i = 0; i < size; ++i) out[i] = to_bf16(x[i] * inverse * weight[i]);
}

void rope_and_write(const RopeCall& call, Range tokens) {
  const std::size_t head_dim = call.head_dim, kv_dim = call.num_kv_heads * head_dim;
  for (std::size_t token = tokens.first; token < tokens.last; ++token) {
    const auto position = static_cast<std::size_t>(call.positions[token]);
    const auto slot = static_cast<std::size_t>(call.slots[token]);
    const float* head = call.qkv + token * call.qkv_stride;
    Bf16* queries = call.queries + token * call.num_heads * head_dim;
    for (std::size_t i = 0; i < call.num_heads; ++i, head += head_dim, queries += head_dim) {
      rotate_head(call, head, call.q_norm, position, queries);
    }
    Bf16* keys = call.keys + slot * kv_dim;
    for (std::size_t i = 0; i < call.num_kv_heads; ++i, head += head_dim, keys += head_dim) {
      rotate_head(call, head, call.k_norm, position, keys);
    }
    Bf16* values = call.values + slot * kv_dim;
    for (std::size_t i = 0; i < kv_dim; ++i) values[i] = to_bf16(head[i]);
  }
}

}  // namespace everbatch::EVERBATCH_PATH
