// Threads for the length of one call. The core keeps no thread pool: a library that is
// used inside data-loader workers and forked processes must not own threads.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <mutex>
#include <stdexcept>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "kernels/system.h"

namespace gnnstore {

inline constexpr int max_threads = 1024;

inline void check_num_threads(int num_threads) {
    if (num_threads < 1 || num_threads > max_threads)
        throw std::invalid_argument("num_threads must be between 1 and " +
                                    std::to_string(max_threads) + ", got " +
                                    std::to_string(num_threads));
}

// Hands out 0, 1, ... num_tasks - 1, each once, to whichever thread asks next.
class TaskQueue {
public:
    explicit TaskQueue(int64_t num_tasks) : num_tasks_(num_tasks) {}

    bool take(int64_t &task) {
        task = next_.fetch_add(1, std::memory_order_relaxed);
        return task < num_tasks_;
    }
    void close() { next_.store(num_tasks_, std::memory_order_relaxed); }

private:
    const int64_t num_tasks_;
    std::atomic<int64_t> next_{0};
};

// Runs worker(queue) on up to num_threads threads, the calling thread among them, and
// returns when all have finished. A worker keeps its scratch memory in local variables
// and calls queue.take() until it is refused. The first exception closes the queue and is
// thrown again here. Where the system refuses another thread, the work goes on with fewer.
template <class Worker>
void run_workers(int num_threads, int64_t num_tasks, const Worker &worker) {
    TaskQueue queue(num_tasks);
    std::mutex mutex;
    std::exception_ptr failure;
    const auto guarded = [&] {
        try {
            worker(queue);
        } catch (...) {
            queue.close();
            const std::lock_guard lock(mutex);
            if (!failure) failure = std::current_exception();
        }
    };
    const int64_t useful = num_tasks < num_threads ? num_tasks : num_threads;
    {
        std::vector<std::jthread> helpers;
        if (useful > 1) helpers.reserve(static_cast<size_t>(useful - 1));
        try {
            for (int64_t i = 1; i < useful; ++i) {
                sys::check_thread_start();
                helpers.emplace_back(guarded);
            }
        } catch (const std::system_error &) {
            // Fewer threads than asked for change the time, not the result.
        }
        guarded();
    }
    if (failure) std::rethrow_exception(failure);
}

}  // namespace gnnstore
