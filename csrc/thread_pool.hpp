// Threads that share the work of one operation.
//
// An operation is cut into numbered tasks, which the threads and the caller take one after the
// other. A thread that is late, because the system gave its core to somebody else, takes none and
// holds nobody up. Threads without work look for some for a short while, as the next operation of a
// pass comes within microseconds, and then sleep.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <thread>
#include <type_traits>
#include <vector>

namespace everbatch {

class ThreadPool {
 public:
  static constexpr int kMaxThreads = 1024;

  // `num_threads` counts the caller's own; 1 to kMaxThreads. `cpus`: none, or one for each thread, on
  // which alone it runs; the first is the caller's (see Caller). std::system_error where the system
  // gives no more threads, or not these CPUs.
  ThreadPool(int num_threads, std::vector<int> cpus);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int num_threads() const { return static_cast<int>(threads_.size()) + 1; }
  const std::vector<int>& cpus() const { return cpus_; }

  // While it lives, the thread that made it runs on the first CPU of a pinned pool, and afterwards
  // wherever it might before: what else it does, such as Python, is not ours to pin. Two calls of the
  // system, so made once for all operations of a pass. What the system refuses is left as it was: it
  // costs time and changes no result.
  class Caller {
   public:
    explicit Caller(const ThreadPool& pool);
    ~Caller();
    Caller(const Caller&) = delete;
    Caller& operator=(const Caller&) = delete;

   private:
    std::vector<std::byte> before_;  // a cpu_set_t; empty: nothing was changed
  };

  // Call task(index, thread) for each index in [0, num_tasks), and return when all have ended.
  // `thread` is in [0, num_threads), and no two tasks that run at once have the same one. Tasks do
  // not throw. One caller at a time; others wait for their turn.
  template <typename Task>
  void run(std::size_t num_tasks, Task&& task) {
    using Plain = std::remove_reference_t<Task>;
    run_erased(num_tasks, [](void* context, std::size_t index, int thread) {
      (*static_cast<Plain*>(context))(index, thread);
    }, const_cast<void*>(static_cast<const void*>(&task)));
  }

 private:
  using Function = void (*)(void* context, std::size_t index, int thread);

  void run_erased(std::size_t num_tasks, Function function, void* context);
  void work(int thread);
  void live(int thread);
  void pin_all();
  void end();

  std::mutex one_caller_;
  // All in one word, so that taking a task also proves that the operation it belongs to still runs:
  // 24 bits count operations, 20 bits say how many tasks it has, 20 which is the next.
  std::atomic<std::uint64_t> ticket_{0};
  std::atomic<Function> function_{nullptr};
  std::atomic<void*> context_{nullptr};
  std::atomic<std::uint32_t> num_done_{0};
  // Counts operations; threads sleep on it.
  std::atomic<std::uint32_t> num_operations_{0};
  std::atomic<bool> is_ending_{false};
  std::vector<int> cpus_;
  std::vector<std::thread> threads_;
};

}  // namespace everbatch
