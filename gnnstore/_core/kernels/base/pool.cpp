#include "kernels/base/pool.h"

#include <pthread.h>
#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <limits>
#include <new>
#include <string>

#include "kernels/base/errors.h"
#include "kernels/base/system.h"

namespace gnnstore {
namespace {

constexpr size_t huge_page_bytes = size_t{2} << 20;
// Below this a huge page would be mostly empty, and malloc serves as well.
constexpr size_t small_bytes = size_t{1} << 20;
constexpr size_t cache_line_bytes = 64;

// Capacities are 8 to 16 times a power of two, so that a buffer is at most an eighth
// larger than the request and batches of nearly equal size share a capacity. Where memory is
// short they are finer, and what is free serves for much less than it could hold: there, a
// buffer that lies idle beside a new one is one too many.
constexpr size_t steps = 8, fine_steps = 32;

size_t capacity_for(size_t num_bytes, bool is_short) {
    const size_t least = std::max(num_bytes, size_t{4096});
    const size_t step = std::bit_floor(least - 1) / (is_short ? fine_steps : steps);
    const size_t rounded = (least + step - 1) / step * step;
    if (rounded < small_bytes) return rounded;
    return (rounded + huge_page_bytes - 1) / huge_page_bytes * huge_page_bytes;
}

void *map_aligned(size_t capacity) {
    // mmap aligns to 4 KiB only: take one huge page more and cut both ends.
    const size_t mapped = capacity + huge_page_bytes;
    void *raw =
        sys::mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (raw == MAP_FAILED) throw std::bad_alloc();
    const auto begin = reinterpret_cast<uintptr_t>(raw);
    const uintptr_t aligned = (begin + huge_page_bytes - 1) / huge_page_bytes * huge_page_bytes;
    const size_t head = aligned - begin, tail = mapped - head - capacity;
    if (head > 0) ::munmap(raw, head);
    if (tail > 0) ::munmap(reinterpret_cast<void *>(aligned + capacity), tail);
    void *data = reinterpret_cast<void *>(aligned);
    (void)sys::madvise(data, capacity, MADV_HUGEPAGE);  // a hint: kernels without it are as correct
    return data;
}

void *take_from_system(size_t capacity) {
    if (capacity >= small_bytes) return map_aligned(capacity);
    void *data = std::aligned_alloc(cache_line_bytes, capacity);
    if (data == nullptr) throw std::bad_alloc();
    return data;
}

void give_to_system(void *data, size_t capacity) noexcept {
    if (capacity >= small_bytes)
        ::munmap(data, capacity);
    else
        std::free(data);
}

}  // namespace

BufferPool &BufferPool::instance() {
    static BufferPool *pool = new BufferPool;
    return *pool;
}

BufferPool::BufferPool() {
    // A child of fork() must not inherit a lock that another thread held.
    ::pthread_atfork([] { instance().mutex_.lock(); }, [] { instance().mutex_.unlock(); },
                     [] { instance().mutex_.unlock(); });
}

void *BufferPool::allocate(int64_t num_bytes) {
    if (num_bytes < 0 || num_bytes > std::numeric_limits<int64_t>::max() / 4)
        throw invalid("num_bytes must be between 0 and 2^61, got ", num_bytes);
    const std::lock_guard lock(mutex_);
    const size_t capacity = capacity_for(static_cast<size_t>(num_bytes), exchanges_);
    const size_t most = exchanges_ ? 2 * capacity : capacity + capacity / 4;
    // A somewhat larger buffer that is mapped already beats a fitting one that is not.
    const auto found = free_.lower_bound(capacity);
    void *data;
    size_t taken;
    if (found != free_.end() && found->first <= most) {
        taken = found->first;
        data = found->second.back().data;  // the latest: most likely still cached
        in_use_.emplace(data, taken);
        found->second.pop_back();
        if (found->second.empty()) free_.erase(found);
        stats_.bytes_free -= static_cast<int64_t>(taken);
        ++stats_.hits;
    } else {
        taken = capacity;
        if (exchanges_) give_back_smaller(capacity);
        data = take_from_system(capacity);
        try {
            in_use_.emplace(data, taken);
        } catch (...) {
            give_to_system(data, taken);
            throw;
        }
        ++stats_.misses;
    }
    ++stats_.buffers_in_use;
    stats_.bytes_in_use += static_cast<int64_t>(taken);
    return data;
}

void BufferPool::release(void *buffer) noexcept {
    const std::lock_guard lock(mutex_);
    const auto entry = in_use_.find(buffer);
    if (entry == in_use_.end()) return;
    const size_t capacity = entry->second;
    in_use_.erase(entry);
    --stats_.buffers_in_use;
    stats_.bytes_in_use -= static_cast<int64_t>(capacity);
    // A buffer too large to be kept must not push out others that can be.
    if (static_cast<int64_t>(capacity) > limit_bytes_) return give_to_system(buffer, capacity);
    try {
        free_[capacity].push_back({buffer, num_releases_++});
        stats_.bytes_free += static_cast<int64_t>(capacity);
    } catch (const std::bad_alloc &) {
        give_to_system(buffer, capacity);
        if (const auto at = free_.find(capacity); at != free_.end() && at->second.empty())
            free_.erase(at);
    }
    trim_locked(limit_bytes_);
}

PoolStats BufferPool::stats() {
    const std::lock_guard lock(mutex_);
    return stats_;
}

void BufferPool::trim(int64_t max_free_bytes) {
    require(max_free_bytes >= 0, "max_free_bytes must not be negative, got ", max_free_bytes);
    const std::lock_guard lock(mutex_);
    trim_locked(max_free_bytes);
}

void BufferPool::set_limit(int64_t max_free_bytes) {
    require(max_free_bytes >= 0, "max_free_bytes must not be negative, got ", max_free_bytes);
    const std::lock_guard lock(mutex_);
    limit_bytes_ = max_free_bytes;
    trim_locked(max_free_bytes);
}

void BufferPool::exchange(bool exchanges) {
    const std::lock_guard lock(mutex_);
    exchanges_ = exchanges;
}

// Returns free buffers of less than `capacity` to the system, the largest first, until there is
// room for one of `capacity` in their place.
void BufferPool::give_back_smaller(size_t capacity) noexcept {
    size_t given = 0;
    auto entry = free_.lower_bound(capacity);
    while (given < capacity && entry != free_.begin()) {
        --entry;
        while (given < capacity && !entry->second.empty()) {
            give_to_system(entry->second.front().data, entry->first);
            stats_.bytes_free -= static_cast<int64_t>(entry->first);
            given += entry->first;
            entry->second.pop_front();
        }
        if (entry->second.empty()) entry = free_.erase(entry);
    }
}

void BufferPool::trim_locked(int64_t max_free_bytes) noexcept {
    while (stats_.bytes_free > max_free_bytes) {
        auto oldest = free_.end();
        for (auto entry = free_.begin(); entry != free_.end(); ++entry)
            if (!entry->second.empty() &&
                (oldest == free_.end() ||
                 entry->second.front().released < oldest->second.front().released))
                oldest = entry;
        if (oldest == free_.end()) return;
        give_to_system(oldest->second.front().data, oldest->first);
        stats_.bytes_free -= static_cast<int64_t>(oldest->first);
        oldest->second.pop_front();
        if (oldest->second.empty()) free_.erase(oldest);
    }
}

}  // namespace gnnstore
