// Copies the rows of a batch that lie in memory, a few at a time, so that reads can be
// started and finished in between.
#pragma once

#include <cstdint>

#include "kernels/row_reader.h"
#include "kernels/stream_copy.h"

namespace gnnstore {

// Copies whole rows to the batch, around the caches where that is faster (see stream_copy.h).
class RowCopy {
public:
    RowCopy(int64_t row_bytes, const uint8_t *out, int64_t out_bytes);
    ~RowCopy();
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

class CachedCopy {
public:
    CachedCopy(const CachedRows &cache, int64_t num_ids, int64_t row_bytes, uint8_t *out,
               const RowCopy &copy);

    bool is_done() const { return next_ == num_ids_; }
    // Copies what is cached among the next num_ids ids.
    void advance(int64_t num_ids);
    int64_t num_copied() const { return num_copied_; }

private:
    void prefetch(int64_t k) const;

    const CachedRows cache_;
    const int64_t num_ids_, row_bytes_, ahead_;
    uint8_t *const out_;
    const RowCopy &copy_;
    int64_t next_ = 0;
    int64_t num_copied_ = 0;
};

}  // namespace gnnstore
