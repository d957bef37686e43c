// Follows the plan of a cache, batch by batch: rows are copied out of slots, and others into them.
// No row is looked up, but slots are checked to hold the expected rows.
#pragma once

#include <cstdint>

#include "kernels/rows/cached_copy.h"
#include "kernels/rows/decode.h"

namespace gnnstore {

// nodes[s] is the row in slot s of a cache. Throws std::invalid_argument unless that is ids[k] for
// s = slots[k], wherever slots[k] >= 0; std::out_of_range if there is no such slot.
template <class Id>
void check_cached(const int64_t *nodes, int64_t num_slots, const int32_t *slots, const Id *ids,
                  int64_t num_ids);

// Copies the row in slot slots[k] to out + k * row_bytes, where slots[k] >= 0; returns how many
// there are. Nothing is written when a slot is out of range. Helped by other threads if there is
// much to copy.
int64_t copy_from_slots(const CachedRows &cache, int64_t num_ids, int64_t row_bytes, uint8_t *out,
                        int64_t out_bytes, int num_threads);

// Rows that lie one behind the other.
struct DenseRows {
    const uint8_t *data;
    int64_t num_bytes;
};

// Decodes to out, one behind the other, the rows in slots[k] where slots[k] >= 0, and for the others
// the next of `missed`, which must be as many. Returns how many came from slots. Nothing is written
// when a slot is out of range.
int64_t decode_from_slots(const CachedRows &cache, int64_t num_ids, const DenseRows &missed,
                          const Decoding &decoding, uint8_t *out, int64_t out_bytes,
                          int num_threads);

// Where rows of a batch go in the cache.
struct SlotChanges {
    const int32_t *positions;  // in the batch
    const int32_t *slots;
    int64_t size;
};

// Slots that rows are copied to.
struct SlotTable {
    uint8_t *table;
    int64_t num_slots, slot_bytes;  // as of CachedRows
};

// Copies rows of a batch to slots. Nothing is written when one of either is out of range.
void copy_to_slots(const uint8_t *rows, int64_t num_rows, const SlotChanges &changes,
                   int64_t row_bytes, const SlotTable &cache);

}  // namespace gnnstore
