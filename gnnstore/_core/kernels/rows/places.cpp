#include "kernels/rows/places.h"

#include <algorithm>
#include <bit>

#include "kernels/base/pooled_array.h"
#include "kernels/base/relabel.h"

namespace gnnstore {
namespace {

// How many ids ahead their slots are fetched.
constexpr int64_t distance = 24;

// An id as a node: negative ones are above all others.
template <class Id>
uint64_t node_of(Id id) {
    return static_cast<uint64_t>(static_cast<int64_t>(id));
}

template <class Table, class Id, class Known>
void find_places(const Id *ids, int64_t num_ids, const Known *known, int64_t num_known,
                 uint64_t last, int32_t *places) {
    const auto num_slots = static_cast<int64_t>(
        std::bit_ceil(static_cast<uint64_t>(2 * num_known + 2)));
    const PooledArray<typename Table::Slot> slots(num_slots);
    Table table;
    table.reset(slots.raw(), num_slots);
    const auto prefetch = [&](const auto *values, int64_t k, int64_t size) {
        if (k + distance < size) table.prefetch(Table::key(node_of(values[k + distance]), 0));
    };
    for (int64_t k = 0; k < num_known; ++k) {
        prefetch(known, k, num_known);
        table.find_or_insert(Table::key(node_of(known[k]), 0), static_cast<uint32_t>(k));
    }
    for (int64_t k = 0; k < num_ids; ++k) {
        prefetch(ids, k, num_ids);
        // One that is too large for the table's keys would be taken for another.
        const uint64_t node = node_of(ids[k]);
        const uint32_t place = table.find(Table::key(node, 0));
        places[k] = node <= last ? static_cast<int32_t>(place) : -1;
    }
}

}  // namespace

template <class Id, class Known>
void places_of(const Id *ids, int64_t num_ids, const Known *known, int64_t num_known,
               int32_t *places) {
    uint64_t largest = 0;
    for (int64_t k = 0; k < num_known; ++k) largest = std::max(largest, node_of(known[k]));
    if (largest < CompactTable::max_nodes)
        find_places<CompactTable>(ids, num_ids, known, num_known, largest, places);
    else
        find_places<WideTable>(ids, num_ids, known, num_known, largest, places);
}

template void places_of(const int32_t *, int64_t, const int32_t *, int64_t, int32_t *);
template void places_of(const int32_t *, int64_t, const int64_t *, int64_t, int32_t *);
template void places_of(const int64_t *, int64_t, const int32_t *, int64_t, int32_t *);
template void places_of(const int64_t *, int64_t, const int64_t *, int64_t, int32_t *);

}  // namespace gnnstore
