// Pinned rows of a cache: they are in its last slots whatever is planned for the others. Plans do
// not know them, so their ids are taken out of what is planned, and their slots are put back into
// the plan. Pinned nodes are given as the bitmap with counts of node_slots.h.
#pragma once

#include <cstdint>

namespace gnnstore {

// Copies the ids that are not pinned to kept [num_ids], in their order; returns how many.
template <class Id>
int64_t drop_pinned(const uint64_t *bits, int64_t num_words, const Id *ids, int64_t num_ids,
                    Id *kept);

// The plan of a batch's unpinned ids, and where the plan of all of its ids goes.
struct PinnedStep {
    const uint64_t *bits;
    const int32_t *ranks;
    int64_t num_words;
    int64_t first_slot;          // of pinned rows
    const int32_t *slots;        // of each unpinned id
    int64_t num_unpinned;
    const int32_t *positions;    // of rows that enter, among the unpinned ids
    int64_t num_changes;
    int32_t *all_slots;          // of each id
    int32_t *all_positions;      // of rows that enter, among all ids
};

// Throws std::invalid_argument if there are not as many unpinned ids as slots for them;
// std::out_of_range if an id or a position is outside of its range.
template <class Id>
void add_pinned(const PinnedStep &step, const Id *ids, int64_t num_ids);

}  // namespace gnnstore
