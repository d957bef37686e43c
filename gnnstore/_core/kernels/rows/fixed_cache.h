// The plan of a cache whose rows were chosen beforehand: what a batch finds in it, and which of
// its rows enter. A row keeps the slot that it was given (see node_slots.h), so all that a plan
// decides is when it is there. `tests.support.twins.caches` defines the result.
#pragma once

#include <cstdint>
#include <vector>

namespace gnnstore {

struct FixedCache {
    // From index_nodes: which nodes have a slot, and which.
    const uint64_t *bits;
    const int32_t *ranks;
    int64_t num_words;
    uint8_t *held;  // of each slot: whether its row is there
    int64_t num_slots;
};

struct FixedStep {
    int64_t misses = 0;  // distinct rows
    // Rows that enter after the batch: positions in it, and slots.
    std::vector<int32_t> positions, slots;
};

// Plans one batch: writes the slot of each row, or -1, and notes in the cache what enters.
// `seen` is a bitmap of num_words, all zeros before and after. Throws std::out_of_range for an
// id outside of it; nothing has changed then. Needs every rank below num_slots.
template <class Id>
FixedStep plan_fixed(const FixedCache &cache, const Id *ids, int64_t num_ids, uint64_t *seen,
                     int32_t *slots);

}  // namespace gnnstore
