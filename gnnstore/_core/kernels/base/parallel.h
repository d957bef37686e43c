// Threads for the length of one call. The core keeps no thread pool: a library that is
// used inside data-loader workers and forked processes must not own threads.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <stdexcept>
#include <stop_token>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "kernels/base/errors.h"
#include "kernels/base/system.h"

namespace gnnstore {

inline constexpr int max_threads = 1024;

inline void check_num_threads(int num_threads) {
    if (num_threads < 1 || num_threads > max_threads)
        throw invalid("num_threads must be between 1 and ", max_threads, ", got ", num_threads);
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

// Threads that stay for the many short steps of one call, the calling thread among them: starting
// some for each step would take about as long as a step does. Where the system refuses another
// thread, there are fewer.
class Team {
public:
    explicit Team(int num_threads) {
        helpers_.reserve(static_cast<size_t>(num_threads - 1));
        try {
            for (int i = 1; i < num_threads; ++i) {
                sys::check_thread_start();
                helpers_.emplace_back([this](const std::stop_token &stop) { help(stop); });
            }
        } catch (const std::system_error &) {
            // Fewer threads than asked for change the time, not the result.
        } catch (...) {
            stop();
            throw;
        }
    }
    ~Team() { stop(); }
    Team(const Team &) = delete;
    Team &operator=(const Team &) = delete;

    // Calls task(0), ... task(num_tasks - 1), each on whichever thread is free, and returns when
    // all are done. The first exception is thrown again here. Not to be called by a task.
    template <class Task>
    void run(int64_t num_tasks, const Task &task) {
        start(num_tasks, std::cref(task));
        finish();
    }

    // The two halves of it: the caller may do something else between start and finish.
    void start(int64_t num_tasks, std::function<void(int64_t)> task) {
        task_ = std::move(task);
        num_tasks_ = num_tasks;
        unfinished_.store(num_tasks, std::memory_order_relaxed);
        untaken_.store(num_tasks, std::memory_order_release);
        step_.fetch_add(1, std::memory_order_release);
        step_.notify_all();
    }
    void finish() {
        take_tasks();
        for (int64_t left; (left = unfinished_.load(std::memory_order_acquire)) > 0;)
            unfinished_.wait(left, std::memory_order_acquire);
        if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
    }

private:
    // Helpers that wait would else be waited for, and wait for ever.
    void stop() {
        for (std::jthread &helper : helpers_) helper.request_stop();
        step_.fetch_add(1);
        step_.notify_all();
    }

    void help(const std::stop_token &stop) {
        for (uint32_t seen = 0; !stop.stop_requested();) {
            step_.wait(seen, std::memory_order_acquire);
            seen = step_.load(std::memory_order_acquire);
            take_tasks();
        }
    }

    // A thread that has taken a task may look at the step, which lasts until that task is done: a
    // thread that comes late takes a task of the next step, or none.
    void take_tasks() {
        for (int64_t left; (left = untaken_.fetch_sub(1, std::memory_order_acq_rel)) > 0;) {
            try {
                task_(num_tasks_ - left);
            } catch (...) {
                const std::lock_guard lock(mutex_);
                if (!failure_) failure_ = std::current_exception();
            }
            if (unfinished_.fetch_sub(1, std::memory_order_acq_rel) == 1) unfinished_.notify_one();
        }
    }

    std::function<void(int64_t)> task_;
    int64_t num_tasks_ = 0;
    std::atomic<int64_t> untaken_{0}, unfinished_{0};
    std::atomic<uint32_t> step_{0};
    std::mutex mutex_;
    std::exception_ptr failure_;
    std::vector<std::jthread> helpers_;  // the last member: they end before the others do
};

}  // namespace gnnstore
