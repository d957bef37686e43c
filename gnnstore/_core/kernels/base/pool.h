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
    int64_t bytes_in_use = 0;  // of whole buffers, not of what was asked for
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
    void release(void *buffer) noexcept;

    PoolStats stats();
    // Returns free memory to the system, oldest first, until at most max_free_bytes are kept.
    void trim(int64_t max_free_bytes);
    // Sets the most free memory that the pool keeps from now on.
    void set_limit(int64_t max_free_bytes);
    // From now on, memory is taken from the system in exchange for free buffers that are too
    // small: what is in use and free together grows as if there was one buffer for both. Larger
    // ones serve up to twice as much as is wanted, and new ones are hardly larger than that.
    void exchange(bool exchanges);

private:
    struct FreeBuffer {
        void *data;
        int64_t released;  // a count of releases: the smaller, the longer unused
    };

    BufferPool();
    void trim_locked(int64_t max_free_bytes) noexcept;
    void give_back_smaller(size_t capacity) noexcept;

    std::mutex mutex_;
    std::map<size_t, std::deque<FreeBuffer>> free_;  // by capacity, oldest first
    std::map<void *, size_t> in_use_;                // capacity of each buffer handed out
    PoolStats stats_;
    int64_t limit_bytes_ = int64_t{1} << 30;
    int64_t num_releases_ = 0;
    bool exchanges_ = false;
};

}  // namespace gnnstore
