// Arrays that live in the buffer pool: scratch that the next call uses again, and outputs
// that are handed to the caller without a copy.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "kernels/base/errors.h"
#include "kernels/base/pool.h"

namespace gnnstore {

// Owns one buffer of the pool, contents unspecified; gives it back when destroyed.
class PooledBuffer {
public:
    PooledBuffer() = default;
    explicit PooledBuffer(int64_t num_bytes) : data_(BufferPool::instance().allocate(num_bytes)) {}
    ~PooledBuffer() {
        if (data_ != nullptr) BufferPool::instance().release(data_);
    }
    PooledBuffer(PooledBuffer &&other) noexcept : data_(std::exchange(other.data_, nullptr)) {}
    PooledBuffer &operator=(PooledBuffer &&other) noexcept {
        std::swap(data_, other.data_);
        return *this;
    }

    void *raw() const { return data_; }

private:
    void *data_ = nullptr;
};

template <class T>
class PooledArray : public PooledBuffer {
    static_assert(std::is_trivially_copyable_v<T>);

public:
    PooledArray() = default;
    explicit PooledArray(int64_t count)
        : PooledBuffer(checked_multiply(count, sizeof(T), "the size of an array")) {}

    T *data() const { return static_cast<T *>(raw()); }
    T &operator[](int64_t i) const { return data()[i]; }

    // Makes room for count elements, of which the first num_kept are those held now.
    void grow(int64_t count, int64_t num_kept) {
        PooledArray larger(count);
        std::copy_n(data(), num_kept, larger.data());
        *this = std::move(larger);
    }
};

}  // namespace gnnstore
