#include "kernels/rows/cached_copy.h"

#include <algorithm>
#include <string>

#include "kernels/base/errors.h"

namespace gnnstore {

void check_slots(const CachedRows &cache, int64_t num_ids) {
    for (int64_t k = 0; cache.slots != nullptr && k < num_ids; ++k)
        if (cache.slots[k] >= cache.num_slots)
            throw out_of_range("slot ", cache.slots[k], " at position ", k, " is outside the cache "
                               "of ", cache.num_slots, " rows");
}

CachedCopy::CachedCopy(const CachedRows &cache, int64_t num_ids, int64_t row_bytes, uint8_t *out,
                       const RowCopy &copy)
    : cache_(cache),
      num_ids_(cache.table == nullptr ? 0 : num_ids),
      row_bytes_(row_bytes),
      ahead_(rows_ahead(row_bytes)),
      out_(out),
      copy_(copy) {
    for (int64_t k = 0; k < std::min(ahead_, num_ids_); ++k) prefetch(k);
}

void CachedCopy::advance(int64_t num_ids) {
    const int64_t end = std::min(num_ids_, next_ + num_ids);
    for (; next_ < end; ++next_) {
        if (next_ + ahead_ < num_ids_) prefetch(next_ + ahead_);
        const int64_t slot = cache_.slots[next_];
        if (slot < 0) continue;
        copy_(out_ + next_ * row_bytes_, cache_.table + slot * cache_.slot_bytes);
        ++num_copied_;
    }
}

}  // namespace gnnstore
