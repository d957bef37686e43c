// Parameters of copying rows from scattered places: how far ahead they are requested, and when
// stores bypass the caches. One place for the numbers, which several loops share.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/base/stream_copy.h"

namespace gnnstore {

// A random row costs 100 ns and more of memory latency, so this many bytes are requested
// ahead: enough to keep all of the second-level cache's misses busy, and few enough to stay
// in that cache until they are copied.
inline constexpr int64_t prefetch_bytes = 32 << 10;
inline constexpr int64_t min_prefetch_rows = 2;
inline constexpr int64_t max_prefetch_rows = 128;
// Behind its first lines a long row is found by the hardware's own prefetcher.
inline constexpr int64_t max_prefetched_row_bytes = 4096;

// Below this the caches hold the output until it is used; above, stores bypass them.
inline constexpr int64_t min_streamed_bytes = 4 << 20;
// Shorter rows wait for memory whatever their stores do.
inline constexpr int64_t min_streamed_row_bytes = 256;

inline int64_t rows_ahead(int64_t row_bytes) {
    return std::clamp(prefetch_bytes / row_bytes, min_prefetch_rows, max_prefetch_rows);
}

inline void prefetch_row(const uint8_t *row, int64_t row_bytes) {
    // Into the second-level cache (locality 2): it tracks three times as many misses as the
    // first, and for these loops that is what counts.
    const int64_t length = std::min(row_bytes, max_prefetched_row_bytes);
    for (int64_t byte = 0; byte < length; byte += stream_line_bytes)
        __builtin_prefetch(row + byte, 0, 2);
    __builtin_prefetch(row + length - 1, 0, 2);  // a row need not start on a line
}

// About 1 MiB a task: enough to pay for taking it, little enough to share out evenly. A multiple of
// 64 rows, so that every task's output begins on a line.
inline int64_t rows_per_task(int64_t row_bytes) {
    constexpr int64_t bytes_per_task = int64_t{1} << 20;
    return std::max<int64_t>(1, bytes_per_task / row_bytes / stream_line_bytes) *
           stream_line_bytes;
}

// Whether a table of out_bytes should be written around the caches.
inline bool should_stream(const uint8_t *out, int64_t out_bytes, int64_t row_bytes) {
    return stream_copy() != nullptr && out_bytes >= min_streamed_bytes &&
           row_bytes >= min_streamed_row_bytes &&
           reinterpret_cast<uintptr_t>(out) % stream_line_bytes == 0;
}

// Copies whole rows to any places in a table of rows, around the caches where that is faster.
class RowCopy {
public:
    RowCopy(int64_t row_bytes, const uint8_t *out, int64_t out_bytes) : row_bytes_(row_bytes) {
        if (row_bytes % stream_line_bytes == 0 && should_stream(out, out_bytes, row_bytes))
            stream_ = stream_copy();
    }
    ~RowCopy() {
        if (stream_ != nullptr) stream_fence();
    }
    RowCopy(const RowCopy &) = delete;
    RowCopy &operator=(const RowCopy &) = delete;

    void operator()(uint8_t *out, const uint8_t *row) const {
        if (stream_ != nullptr)
            stream_(out, row, row_bytes_);
        else
            __builtin_memcpy(out, row, static_cast<size_t>(row_bytes_));
    }

private:
    const int64_t row_bytes_;
    StreamCopy stream_ = nullptr;
};

}  // namespace gnnstore
