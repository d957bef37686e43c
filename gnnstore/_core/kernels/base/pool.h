// Buffers that are used again. A fresh 53 MB batch costs more in page faults than in
// copying, so a buffer goes back to a free list when its last user lets go of it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>

namespace gnnstore {

struct PoolStats {
    int64_t buffers_in_use = 0;
    int64_t bytes_in_use = 0;  // of buffers as far as they were filled, rounded up
    int64_t bytes_free = 0;    // kept for later use
    int64_t hits = 0;          // requests served from the free list
    int64_t misses = 0;        // requests that took memory from the system
};

class BufferPool {
public:
    // The pool of this process. It is never destroyed: buffers may outlive static objects.
    static BufferPool &instance();

    // A buffer of at least num_bytes, its contents unspecified. From 1 MiB on it is aligned
    // to 2 MiB and asks for huge pages, below that it is aligned to a cache line.
    void *allocate(int64_t num_bytes);
    // Gives a buffer back; anything else is ignored.
    void release(void *data) noexcept;

    PoolStats stats();
    // Returns free memory to the system, oldest first, until at most max_free_bytes are kept; of the
    // last buffer only what is too much.
    void trim(int64_t max_free_bytes);
    // Sets the most free memory that the pool keeps from now on.
    void set_limit(int64_t max_free_bytes);
    // From now on, memory is taken from the system in exchange for free buffers that are too
    // small: what is in use and free together grows as if there was one buffer for both. Buffers
    // have addresses for up to twice as much as is wanted, and memory for what they have held.
    void exchange(bool exchanges);

private:
    struct Buffer {
        void *data = nullptr;
        size_t capacity = 0;
        size_t held = 0;       // bytes from the first on that may have memory
        int64_t released = 0;  // a count of releases: the smaller, the longer unused
    };

    BufferPool();
    Buffer take_free(size_t held) noexcept;
    void trim_locked(int64_t max_free_bytes) noexcept;
    void give_back_smaller(size_t held) noexcept;
    void drop_oldest(std::deque<Buffer> &buffers) noexcept;

    std::mutex mutex_;
    std::map<size_t, std::deque<Buffer>> free_;  // by capacity, oldest first
    std::map<void *, Buffer> in_use_;
    PoolStats stats_;
    int64_t limit_bytes_ = int64_t{1} << 30;
    int64_t num_releases_ = 0;
    bool exchanges_ = false;
};

}  // namespace gnnstore
