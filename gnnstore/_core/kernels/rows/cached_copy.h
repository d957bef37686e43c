// Copies the rows of a batch that lie in memory, a few at a time, so that reads can be
// started and finished in between.
#pragma once

#include <cstdint>

#include "kernels/base/row_copy.h"

namespace gnnstore {

inline constexpr int64_t any_slot = int64_t{1} << 31;  // more than there can be

// Rows that lie in memory: row ids[k] begins at byte slots[k] * slot_bytes of the table, where
// slots[k] >= 0. Without a table, and with any_slot in num_slots, rows that have a slot are left to
// somebody else.
struct CachedRows {
    const uint8_t *table = nullptr;
    int64_t num_slots = 0;
    int64_t slot_bytes = 0;  // from one row to the next, at least a row's
    const int32_t *slots = nullptr;
};

// Throws std::out_of_range where a slot is not in the table.
void check_slots(const CachedRows &cache, int64_t num_ids);

class CachedCopy {
public:
    CachedCopy(const CachedRows &cache, int64_t num_ids, int64_t row_bytes, uint8_t *out,
               const RowCopy &copy);

    bool is_done() const { return next_ == num_ids_; }
    // Copies what is cached among the next num_ids ids.
    void advance(int64_t num_ids);
    int64_t num_copied() const { return num_copied_; }

private:
    void prefetch(int64_t k) const {
        const int64_t slot = cache_.slots[k];
        if (slot >= 0) prefetch_row(cache_.table + slot * cache_.slot_bytes, row_bytes_);
    }

    const CachedRows cache_;
    const int64_t num_ids_, row_bytes_, ahead_;
    uint8_t *const out_;
    const RowCopy &copy_;
    int64_t next_ = 0;
    int64_t num_copied_ = 0;
};

}  // namespace gnnstore
