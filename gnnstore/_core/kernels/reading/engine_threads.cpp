// Reads by threads: each reads one range at a time, by pread or by copying from a mapping. As
// many reads as threads are in flight at the disk, the others wait in the queue.
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <exception>
#include <limits>
#include <mutex>
#include <stdexcept>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "kernels/base/errors.h"
#include "kernels/base/system.h"
#include "kernels/reading/engines.h"
#include "kernels/reading/read_progress.h"

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22  // Linux 5.14
#endif

namespace gnnstore {
namespace {

// Threads do nothing but wait for the disk, and Python's handlers must run on its own.
class SignalsBlocked {
public:
    SignalsBlocked() {
        sigset_t all;
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &before_);
    }
    ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
    SignalsBlocked(const SignalsBlocked &) = delete;
    SignalsBlocked &operator=(const SignalsBlocked &) = delete;

private:
    sigset_t before_;
};

// How a thread reads. It may stop half-way when is_given_up: the result is not used then.
using ReadFunction = void (*)(const Read &, const std::atomic<bool> &is_given_up);

void read_by_pread(const Read &read, const std::atomic<bool> &is_given_up) {
    ReadProgress progress(read);
    while (!is_given_up.load(std::memory_order_relaxed)) {
        const ssize_t got =
            sys::pread(read.file->descriptor(), progress.out(),
                       static_cast<size_t>(progress.length()), progress.offset());
        switch (progress.advance(got < 0 ? -errno : got)) {
            case ReadProgress::Step::finished: return;
            case ReadProgress::Step::again: break;
            case ReadProgress::Step::later: std::this_thread::sleep_until(progress.not_before());
        }
    }
}

// Throws if the file no longer holds what was asked for.
void check_size(const Read &read) {
    struct stat status;
    if (sys::fstat(read.file->descriptor(), &status) != 0)
        throw read_error(read, read.offset, read.required, errno);
    if (status.st_size < read.offset + read.required) throw truncation_error(read, status.st_size);
}

// Fetches the pages that hold [begin, begin + num_bytes). A page that cannot be read would be
// SIGBUS when it is touched, which ends the process; asked for like this, it is an error.
void populate(const Read &read, const uint8_t *begin, int64_t num_bytes,
              const std::atomic<bool> &is_given_up) {
    static const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
    const uintptr_t first = reinterpret_cast<uintptr_t>(begin) / page * page;
    const uintptr_t last = reinterpret_cast<uintptr_t>(begin) + static_cast<uintptr_t>(num_bytes);
    auto *place = reinterpret_cast<void *>(first);
    // The mapping is advised against reading ahead, so pages would come one after the other:
    // 360 MB/s in pieces of 64 KiB, where this makes it 1.1 GB/s.
    if (last - first > page) (void)sys::madvise(place, last - first, MADV_WILLNEED);
    Patience patience;
    while (!is_given_up.load(std::memory_order_relaxed) &&
           sys::madvise(place, last - first, MADV_POPULATE_READ) != 0) {
        const int code = errno;
        if (code == EINVAL) return;  // Linux before 5.14: the copy fetches them
        if (code == EFAULT) {
            check_size(read);
            throw read_error(read, read.offset, read.required, EIO);
        }
        if ((code != EINTR && code != EAGAIN) || !patience.is_left())
            throw read_error(read, read.offset, read.required, code);
        std::this_thread::sleep_for(patience.next_pause());
    }
}

// Only what is required: the rest of the last unit may be on a page that is not needed.
void read_by_copying(const Read &read, const std::atomic<bool> &is_given_up) {
    if (read.required > read.file->mapped_bytes() - read.offset)
        throw out_of_range("a read ends at byte ", read.offset + read.required, ", but ",
                           read.file->mapped_bytes(), " bytes of ", read.file->path(), " are "
                           "mapped");
    const uint8_t *begin = read.file->mapped() + read.offset;
    check_size(read);
    populate(read, begin, read.required, is_given_up);
    if (is_given_up.load(std::memory_order_relaxed)) return;  // nothing vouches for the pages
    // A file that is truncated between these two lines is still SIGBUS.
    std::memcpy(read.out, begin, static_cast<size_t>(read.required));
}

class ThreadEngine final : public ReadEngine {
public:
    explicit ThreadEngine(const EngineOptions &options)
        : depth_(options.queue_depth),
          max_threads_(std::min(options.num_threads, options.queue_depth)),
          kind_(options.kind),
          read_(options.kind == EngineKind::mmap ? read_by_copying : read_by_pread),
          // Copies are made by threads of this process, which a fork does not lead astray.
          not_forked_(options.kind == EngineKind::mmap ? Staging{} : options.staging),
          queue_(static_cast<size_t>(options.queue_depth)) {
        // No allocation can fail once a read is under way.
        finished_.reserve(queue_.size());
        failures_.reserve(queue_.size());
        threads_.reserve(static_cast<size_t>(max_threads_));
    }

    ~ThreadEngine() override {
        ThreadEngine::drain();
        {
            const std::lock_guard lock(mutex_);
            is_stopping_ = true;
        }
        work_.notify_all();
        for (std::thread &thread : threads_) thread.join();
    }

    int queue_depth() const override { return depth_; }
    int num_in_flight() const override { return num_in_flight_; }

    void submit(std::span<const Read> reads) override {
        check_reads(reads, num_in_flight_, depth_);
        start_threads(num_in_flight_ + static_cast<int>(reads.size()));
        num_in_flight_ += static_cast<int>(reads.size());
        size_t num_woken;
        {
            const std::lock_guard lock(mutex_);
            for (const Read &read : reads) queue_[(first_ + num_queued_++) % queue_.size()] = read;
            num_woken = std::min(reads.size(), num_idle_);
        }
        for (; num_woken > 0; --num_woken) work_.notify_one();
    }

    int finished(uint64_t *tags, int min_reads) override {
        const auto wanted = static_cast<size_t>(std::max(std::min(min_reads, num_in_flight_), 0));
        std::exception_ptr failure;
        size_t num_finished = 0;
        {
            std::unique_lock lock(mutex_);
            num_awaited_ = wanted;
            done_.wait(lock, [&] { return !failures_.empty() || finished_.size() >= wanted; });
            num_awaited_ = nobody_waits;
            if (!failures_.empty()) {
                failure = std::move(failures_.back());
                failures_.pop_back();
            } else {
                num_finished = finished_.size();
                std::copy(finished_.begin(), finished_.end(), tags);
                finished_.clear();
            }
        }
        if (failure) {
            --num_in_flight_;
            std::rethrow_exception(failure);
        }
        num_in_flight_ -= static_cast<int>(num_finished);
        return static_cast<int>(num_finished);
    }

    void drain() noexcept override {
        std::unique_lock lock(mutex_);
        is_given_up_ = true;
        num_queued_ = 0;
        num_awaited_ = 0;
        done_.wait(lock, [&] { return num_running_ == 0; });
        num_awaited_ = nobody_waits;
        finished_.clear();
        failures_.clear();
        is_given_up_ = false;
        num_in_flight_ = 0;
    }

    std::string describe() const override {
        return std::string(kind_ == EngineKind::mmap ? "mmap" : "pread") + ", up to " +
               std::to_string(max_threads_) + " threads";
    }

private:
    static constexpr size_t nobody_waits = std::numeric_limits<size_t>::max();

    // Threads come with the reads that need them. Where the system refuses one, those that
    // run do the work, and it is not asked again.
    void start_threads(int num_reads) {
        const auto useful = static_cast<size_t>(std::min(num_reads, max_threads_));
        if (threads_.size() >= useful || (is_refused_ && !threads_.empty())) return;
        const SignalsBlocked blocked;
        try {
            while (threads_.size() < useful) {
                sys::check_thread_start();
                threads_.emplace_back([this] { work(); });
            }
        } catch (const std::system_error &error) {
            is_refused_ = true;
            const int code = error.code().value();
            if (threads_.empty())
                throw IoError(code, std::string("cannot start a thread: ") + std::strerror(code),
                              {});
        }
    }

    void work() {
        std::unique_lock lock(mutex_);
        for (;;) {
            ++num_idle_;
            work_.wait(lock, [&] { return is_stopping_ || num_queued_ > 0; });
            --num_idle_;
            if (is_stopping_) return;
            const Read read = queue_[first_];
            first_ = (first_ + 1) % queue_.size();
            --num_queued_;
            ++num_running_;
            lock.unlock();
            std::exception_ptr failure;
            try {
                read_(read, is_given_up_);
            } catch (...) {
                failure = std::current_exception();
            }
            lock.lock();
            --num_running_;
            if (failure)
                failures_.push_back(std::move(failure));
            else
                finished_.push_back(read.tag);
            const bool is_awaited = !failures_.empty() || finished_.size() >= num_awaited_;
            if (is_awaited && num_awaited_ != nobody_waits) done_.notify_one();
        }
    }

    const int depth_;
    const int max_threads_;
    const EngineKind kind_;
    const ReadFunction read_;
    const NotForked not_forked_;

    // Used by the thread that the engine belongs to.
    int num_in_flight_ = 0;
    bool is_refused_ = false;
    std::vector<std::thread> threads_;

    // Shared, under the mutex.
    std::mutex mutex_;
    std::condition_variable work_, done_;
    std::vector<Read> queue_;  // a ring: num_queued_ reads from first_ on
    size_t first_ = 0, num_queued_ = 0;
    size_t num_idle_ = 0, num_running_ = 0;
    std::vector<uint64_t> finished_;  // tags
    std::vector<std::exception_ptr> failures_;
    size_t num_awaited_ = nobody_waits;  // finished reads that done_ is waited on for
    std::atomic<bool> is_given_up_{false};  // read without the mutex
    bool is_stopping_ = false;
};

}  // namespace

std::unique_ptr<ReadEngine> make_thread_engine(const EngineOptions &options) {
    return std::make_unique<ThreadEngine>(options);
}

}  // namespace gnnstore
