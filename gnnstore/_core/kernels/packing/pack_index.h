// The index of the rows of a batch that are packed, and where each of them goes: the misses of a
// plan, inverted. Rows are packed in the order of the table, so the missed rows of a batch, sorted,
// are all that packing needs, and their positions all that reading back needs: packed row k
// goes to position k. One batch at a time, since traces need not be in memory.
// `tests.support.twins.packing` defines the result.
#pragma once

#include <cstdint>
#include <vector>

namespace gnnstore {

struct SortedMisses {
    int64_t num_rows = 0;  // distinct ones
    // For accesses whose row comes a second time: where, and where it comes first.
    std::vector<int32_t> repeat_targets, repeat_sources;
};

// Fills rows[k] and positions[k] with the distinct rows that are missed (slots[j] < 0), in the
// order of the table, and where each comes first. Throws std::out_of_range for a row outside
// the table, std::invalid_argument if there are more than `room`, or 2^31 accesses.
template <class Id>
SortedMisses sort_misses(const Id *ids, const int32_t *slots, int64_t size,
                         int64_t num_rows_in_table, Id *rows, int32_t *positions, int64_t room);

}  // namespace gnnstore
