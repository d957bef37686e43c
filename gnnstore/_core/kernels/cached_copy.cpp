#include "kernels/cached_copy.h"

#include <algorithm>

namespace gnnstore {
namespace {

// The reasons for these numbers stand in rows.cpp, where whole tables are gathered.
constexpr int64_t line_bytes = stream_line_bytes;
constexpr int64_t prefetch_bytes = 32 << 10;
constexpr int64_t max_prefetch_rows = 128;
constexpr int64_t max_prefetched_row_bytes = 4096;
constexpr int64_t min_streamed_bytes = 4 << 20;
constexpr int64_t min_streamed_row_bytes = 256;

}  // namespace

RowCopy::RowCopy(int64_t row_bytes, const uint8_t *out, int64_t out_bytes)
    : row_bytes_(row_bytes) {
    if (out_bytes >= min_streamed_bytes && row_bytes >= min_streamed_row_bytes &&
        row_bytes % line_bytes == 0 && reinterpret_cast<uintptr_t>(out) % line_bytes == 0)
        stream_ = stream_copy();
}

RowCopy::~RowCopy() {
    if (stream_ != nullptr) stream_fence();
}

CachedCopy::CachedCopy(const CachedRows &cache, int64_t num_ids, int64_t row_bytes, uint8_t *out,
                       const RowCopy &copy)
    : cache_(cache),
      num_ids_(cache.slots == nullptr ? 0 : num_ids),
      row_bytes_(row_bytes),
      ahead_(std::clamp<int64_t>(prefetch_bytes / row_bytes, 2, max_prefetch_rows)),
      out_(out),
      copy_(copy) {
    for (int64_t k = 0; k < std::min(ahead_, num_ids_); ++k) prefetch(k);
}

void CachedCopy::prefetch(int64_t k) const {
    const int64_t slot = cache_.slots[k];
    if (slot < 0) return;
    const uint8_t *row = cache_.table + slot * row_bytes_;
    const int64_t length = std::min(row_bytes_, max_prefetched_row_bytes);
    for (int64_t byte = 0; byte < length; byte += line_bytes)
        __builtin_prefetch(row + byte, 0, 2);
}

void CachedCopy::advance(int64_t num_ids) {
    const int64_t end = std::min(num_ids_, next_ + num_ids);
    for (; next_ < end; ++next_) {
        if (next_ + ahead_ < num_ids_) prefetch(next_ + ahead_);
        const int64_t slot = cache_.slots[next_];
        if (slot < 0) continue;
        copy_(out_ + next_ * row_bytes_, cache_.table + slot * row_bytes_);
        ++num_copied_;
    }
}

}  // namespace gnnstore
