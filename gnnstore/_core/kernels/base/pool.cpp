#include "kernels/base/pool.h"

#include <pthread.h>
#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <limits>
#include <new>
#include <string>
#include <utility>

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
// short they are finer if malloc takes them at once, and powers of two if pages are taken when they
// are first written: there, a buffer that lies idle beside a new one is one too many, so what is
// free serves for much less than it could hold, and grows for more.
constexpr size_t steps = 8, fine_steps = 32;

size_t round_up(size_t num_bytes, size_t unit) { return (num_bytes + unit - 1) / unit * unit; }

size_t stepped(size_t num_bytes, size_t num_steps) {
    const size_t least = std::max(num_bytes, size_t{4096});
    return round_up(least, std::bit_floor(least - 1) / num_steps);
}

// The memory that a buffer of so many bytes takes once it is filled.
size_t held_for(size_t num_bytes, bool is_short) {
    const size_t rounded = stepped(num_bytes, is_short ? fine_steps : steps);
    return rounded < small_bytes ? rounded : round_up(num_bytes, huge_page_bytes);
}

size_t capacity_for(size_t held, bool is_short) {
    if (held < small_bytes) return held;
    return is_short ? std::bit_ceil(held) : round_up(stepped(held, steps), huge_page_bytes);
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
    const size_t held = held_for(static_cast<size_t>(num_bytes), exchanges_);
    Buffer buffer = take_free(held);
    const bool is_hit = buffer.data != nullptr;
    if (!is_hit) {
        if (exchanges_) give_back_smaller(held);
        buffer = {nullptr, capacity_for(held, exchanges_), held};
        buffer.data = take_from_system(buffer.capacity);
    }
    try {
        in_use_.emplace(buffer.data, buffer);
    } catch (...) {
        give_to_system(buffer.data, buffer.capacity);
        throw;
    }
    ++(is_hit ? stats_.hits : stats_.misses);
    ++stats_.buffers_in_use;
    stats_.bytes_in_use += static_cast<int64_t>(buffer.held);
    return buffer.data;
}

void BufferPool::release(void *data) noexcept {
    const std::lock_guard lock(mutex_);
    const auto entry = in_use_.find(data);
    if (entry == in_use_.end()) return;
    Buffer buffer = entry->second;
    in_use_.erase(entry);
    --stats_.buffers_in_use;
    stats_.bytes_in_use -= static_cast<int64_t>(buffer.held);
    // A buffer too large to be kept must not push out others that can be.
    if (static_cast<int64_t>(buffer.held) > limit_bytes_)
        return give_to_system(data, buffer.capacity);
    buffer.released = num_releases_++;
    try {
        free_[buffer.capacity].push_back(buffer);
        stats_.bytes_free += static_cast<int64_t>(buffer.held);
    } catch (const std::bad_alloc &) {
        give_to_system(data, buffer.capacity);
        if (const auto at = free_.find(buffer.capacity); at != free_.end() && at->second.empty())
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

// Takes a free buffer that will hold so many bytes, of those the one that grows least, then the
// smallest; without data if there is none. A somewhat larger buffer that is mapped already beats a
// fitting one that is not.
BufferPool::Buffer BufferPool::take_free(size_t held) noexcept {
    const size_t capacity = capacity_for(held, exchanges_);
    const size_t most = exchanges_ ? 2 * capacity : capacity + capacity / 4;
    const size_t most_held = exchanges_ ? 2 * held : most;
    const auto cost = [held](const Buffer &buffer) {
        return std::pair(held - std::min(held, buffer.held), buffer.held);
    };
    auto chosen = free_.end();
    size_t place = 0;
    for (auto entry = free_.lower_bound(held); entry != free_.end() && entry->first <= most;
         ++entry)
        for (size_t i = 0; i < entry->second.size(); ++i) {
            const Buffer &buffer = entry->second[i];
            if (buffer.held > most_held) continue;
            // The latest of equal ones: most likely still cached.
            if (chosen != free_.end() && cost(chosen->second[place]) < cost(buffer)) continue;
            chosen = entry;
            place = i;
        }
    if (chosen == free_.end()) return {};
    Buffer buffer = chosen->second[place];
    chosen->second.erase(chosen->second.begin() + static_cast<std::ptrdiff_t>(place));
    if (chosen->second.empty()) free_.erase(chosen);
    stats_.bytes_free -= static_cast<int64_t>(buffer.held);
    buffer.held = std::max(buffer.held, held);
    return buffer;
}

// Returns free buffers that are too small for `held` bytes to the system, the largest first, until
// there is room for as many in their place.
void BufferPool::give_back_smaller(size_t held) noexcept {
    size_t given = 0;
    auto entry = free_.lower_bound(held);
    while (given < held && entry != free_.begin()) {
        --entry;
        while (given < held && !entry->second.empty()) {
            given += entry->second.front().held;
            drop_oldest(entry->second);
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
        // Its last pages, if they are enough: the rest serves as it is.
        Buffer &buffer = oldest->second.front();
        const size_t excess =
            round_up(static_cast<size_t>(stats_.bytes_free - max_free_bytes), huge_page_bytes);
        if (buffer.capacity >= small_bytes && excess < buffer.held &&
            sys::madvise(static_cast<uint8_t *>(buffer.data) + (buffer.held - excess), excess,
                         MADV_DONTNEED) == 0) {
            buffer.held -= excess;
            stats_.bytes_free -= static_cast<int64_t>(excess);
            return;
        }
        drop_oldest(oldest->second);
        if (oldest->second.empty()) free_.erase(oldest);
    }
}

void BufferPool::drop_oldest(std::deque<Buffer> &buffers) noexcept {
    const Buffer &buffer = buffers.front();
    give_to_system(buffer.data, buffer.capacity);
    stats_.bytes_free -= static_cast<int64_t>(buffer.held);
    buffers.pop_front();
}

}  // namespace gnnstore
