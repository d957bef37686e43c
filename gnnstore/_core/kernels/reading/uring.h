// The rings of io_uring, through which a program and the kernel exchange reads and results:
// the system calls and the shared memory, by the kernel's header alone. liburing would be one
// more library to find at build time, for what fits on a page.
#pragma once

#include <linux/io_uring.h>

#include <cstddef>
#include <cstdint>
#include <string>

namespace gnnstore {

// Used by one thread at a time. Only functions marked as a call make one.
class Ring {
public:
    // Room for num_entries submissions, and for twice as many completions. Throws IoError
    // naming the call that failed.
    explicit Ring(unsigned num_entries);
    ~Ring();
    Ring(const Ring &) = delete;
    Ring &operator=(const Ring &) = delete;

    // Lets the kernel pin memory once instead of at every read (a call). Returns 0 or errno.
    int register_buffer(void *data, size_t num_bytes);
    // Gives it free again, at once: closing the ring would, but some time later.
    void unregister_buffers();

    // The next submission, zeroed. There is room for num_entries that have not been handed
    // over by enter().
    io_uring_sqe &next_submission();
    // Submissions that the kernel has not taken yet.
    unsigned num_unsubmitted() const { return tail_ - kernel_head(); }
    // Takes them back.
    void forget_unsubmitted() { tail_ = kernel_head(); }

    // Hands over what was prepared, and waits until at least so many completions are there
    // (a call). Returns 0 or errno; num_unsubmitted() counts what was not handed over.
    int enter(unsigned min_completions);
    // Whether the kernel has results that it hands out at the next call only.
    bool has_work_to_run() const;

    // Takes the next completion off the ring; false if there is none.
    bool next_completion(uint64_t &user_data, int32_t &result) {
        // Only this program moves the head, so it reads it as it is. The tail is acquired:
        // the completion was written before it.
        const unsigned head = *completion_head_;
        if (head == __atomic_load_n(completion_tail_, __ATOMIC_ACQUIRE)) return false;
        const io_uring_cqe &entry = completions_[head & completion_mask_];
        user_data = entry.user_data;
        result = entry.res;
        // Released: from here on the kernel may write to the entry that was just read.
        __atomic_store_n(completion_head_, head + 1, __ATOMIC_RELEASE);
        return true;
    }

private:
    void set_up(unsigned num_entries);
    void map();
    void close_all();
    unsigned kernel_head() const { return __atomic_load_n(submission_head_, __ATOMIC_ACQUIRE); }

    // Memory shared with the kernel.
    struct Map {
        void *data = nullptr;
        size_t num_bytes = 0;
    };
    Map map_range(size_t num_bytes, int64_t offset);

    int descriptor_ = -1;
    io_uring_params params_{};
    Map rings_, completion_ring_, entries_;  // completion_ring_: kernels before 5.4 only

    unsigned *submission_head_ = nullptr;
    unsigned *submission_tail_ = nullptr;
    unsigned *submission_flags_ = nullptr;
    unsigned submission_mask_ = 0;
    io_uring_sqe *submissions_ = nullptr;
    unsigned tail_ = 0;  // of what was prepared; the kernel learns of it in enter()

    unsigned *completion_head_ = nullptr;
    unsigned *completion_tail_ = nullptr;
    unsigned completion_mask_ = 0;
    io_uring_cqe *completions_ = nullptr;
};

}  // namespace gnnstore
