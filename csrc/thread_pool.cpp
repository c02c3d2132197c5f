#include "thread_pool.hpp"

#include <cerrno>
#include <chrono>
#include <cstring>
#include <system_error>
#include <utility>

#if defined(__linux__)
#include <pthread.h>
#include <sched.h>
#endif
#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace everbatch {
namespace {

constexpr unsigned kTaskBits = 20;
constexpr std::uint64_t kTaskMask = (1u << kTaskBits) - 1;
// Between two operations of a pass lie microseconds, between two passes sampling and scheduling.
constexpr std::chrono::microseconds kLookingFor{1000};
constexpr int kLooksBetweenClocks = 64;

std::uint64_t next_task(std::uint64_t ticket) { return ticket & kTaskMask; }
std::uint64_t task_count(std::uint64_t ticket) { return ticket >> kTaskBits & kTaskMask; }

void pause() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Look until `is_there()`, but not for long; give whether it is.
template <typename Condition>
bool look_for(Condition is_there) {
  const auto give_up = std::chrono::steady_clock::now() + kLookingFor;
  do {
    for (int look = 0; look < kLooksBetweenClocks; ++look) {
      if (is_there()) return true;
      pause();
    }
  } while (std::chrono::steady_clock::now() < give_up);
  return is_there();
}

#if defined(__linux__)
// Let a thread run on one CPU; give an error number, 0 for none.
int pin(pthread_t thread, int cpu) {
  if (cpu < 0 || cpu >= CPU_SETSIZE) return EINVAL;
  cpu_set_t only;
  CPU_ZERO(&only);
  CPU_SET(cpu, &only);
  return pthread_setaffinity_np(thread, sizeof only, &only);
}
#endif

}  // namespace

#if defined(__linux__)
ThreadPool::Caller::Caller(const ThreadPool& pool) {
  if (pool.cpus_.empty()) return;
  cpu_set_t before;
  if (pthread_getaffinity_np(pthread_self(), sizeof before, &before) != 0) return;
  if (pin(pthread_self(), pool.cpus_.front()) != 0) return;
  before_.resize(sizeof before);
  std::memcpy(before_.data(), &before, sizeof before);
}

ThreadPool::Caller::~Caller() {
  if (before_.empty()) return;
  cpu_set_t before;
  std::memcpy(&before, before_.data(), sizeof before);
  pthread_setaffinity_np(pthread_self(), sizeof before, &before);
}
#else
ThreadPool::Caller::Caller(const ThreadPool&) {}
ThreadPool::Caller::~Caller() = default;
#endif

ThreadPool::ThreadPool(int num_threads, std::vector<int> cpus) : cpus_(std::move(cpus)) {
  threads_.reserve(static_cast<std::size_t>(num_threads - 1));
  try {
    for (int thread = 1; thread < num_threads; ++thread) {
      threads_.emplace_back([this, thread] { live(thread); });
    }
    pin_all();
  } catch (...) {
    end();  // No destructor runs for a pool that was not made.
    throw;
  }
}

ThreadPool::~ThreadPool() { end(); }

// Pin the threads; of the caller's CPU only make sure that it may be had.
void ThreadPool::pin_all() {
  if (cpus_.empty()) return;
#if defined(__linux__)
  int error = 0;
  std::thread([&] { error = pin(pthread_self(), cpus_.front()); }).join();
  for (std::size_t i = 0; i < threads_.size() && error == 0; ++i) {
    error = pin(threads_[i].native_handle(), cpus_[i + 1]);
  }
#else
  const int error = ENOSYS;
#endif
  if (error != 0) throw std::system_error(error, std::generic_category());
}

void ThreadPool::end() {
  is_ending_ = true;
  ++num_operations_;
  num_operations_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void ThreadPool::run_erased(std::size_t num_tasks, Function function, void* context) {
  const std::lock_guard lock(one_caller_);
  if (threads_.empty() || num_tasks <= 1 || num_tasks > kTaskMask) {
    for (std::size_t index = 0; index < num_tasks; ++index) function(context, index, 0);
    return;
  }
  function_.store(function, std::memory_order_relaxed);
  context_.store(context, std::memory_order_relaxed);
  num_done_.store(0, std::memory_order_relaxed);
  const std::uint64_t operation = (ticket_.load(std::memory_order_relaxed) >> 2 * kTaskBits) + 1;
  ticket_.store(operation << 2 * kTaskBits | num_tasks << kTaskBits, std::memory_order_release);
  num_operations_.fetch_add(1);
  num_operations_.notify_all();
  work(0);
  const auto count = static_cast<std::uint32_t>(num_tasks);
  const auto all_done = [&] { return num_done_.load(std::memory_order_acquire) == count; };
  while (!look_for(all_done)) {
    const std::uint32_t seen = num_done_.load(std::memory_order_acquire);
    if (seen != count) num_done_.wait(seen);
  }
}

// Take tasks while there are any.
void ThreadPool::work(int thread) {
  std::uint64_t ticket = ticket_.load(std::memory_order_acquire);
  while (next_task(ticket) < task_count(ticket)) {
    if (!ticket_.compare_exchange_weak(ticket, ticket + 1, std::memory_order_acq_rel)) continue;
    // The task is ours, so its operation goes on until we say that it is done.
    const Function function = function_.load(std::memory_order_relaxed);
    function(context_.load(std::memory_order_relaxed), next_task(ticket), thread);
    const auto count = static_cast<std::uint32_t>(task_count(ticket));
    if (num_done_.fetch_add(1, std::memory_order_acq_rel) + 1 == count) num_done_.notify_one();
    ticket = ticket_.load(std::memory_order_acquire);
  }
}

void ThreadPool::live(int thread) {
  std::uint32_t seen = 0;
  while (true) {
    const auto has_work = [&] { return num_operations_.load(std::memory_order_acquire) != seen; };
    while (!look_for(has_work)) num_operations_.wait(seen);
    seen = num_operations_.load(std::memory_order_acquire);
    if (is_ending_) return;
    work(thread);
  }
}

}  // namespace everbatch
