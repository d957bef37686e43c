// For each access of a trace, where its row is used next, found in memory that goes with the
// trace and never with the graph.
//
// A table of all rows is looked at in random order, and waits for memory at each access. So the
// accesses are first put into groups by their rows, in an order that can be undone: each group
// is a run of an array, and takes its accesses in the order of the trace. A group's table then
// fits in a core's own cache, the next uses found take the place of the accesses, and going
// through the trace once more takes them out of the groups in the order in which they went in.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/superbatch.h"
#include "kernels/trace_positions.h"

namespace gnnstore {

// Puts rows into groups. Dense ids are told apart in their group by a key of few bits.
class RowGroups {
public:
    static constexpr int key_bits = 17;  // with 4 bytes each, 512 KiB of a core's second cache

    // For ids up to `largest` in so many places.
    RowGroups(int64_t largest, int64_t num_accesses);

    bool has_keys() const { return has_keys_; }
    int64_t num_groups() const { return num_groups_; }
    int64_t num_keys() const { return num_keys_; }

    int64_t group(int64_t id) const { return static_cast<int64_t>(mixed(id) >> shift_); }
    // The key in the highest bits; 0 where there are none.
    uint32_t high_key(int64_t id) const {
        return static_cast<uint32_t>(mixed(id) >> (shift_ - 32)) & key_mask_;
    }
    static uint32_t key(int64_t id) {
        return static_cast<uint32_t>(id) & ((uint32_t{1} << key_bits) - 1);
    }
    // Bits that differ among the rows of a group, in the highest ones first.
    uint64_t mixed_in_group(int64_t id) const { return mixed(id) << (64 - shift_); }

private:
    uint64_t mixed(int64_t id) const { return static_cast<uint64_t>(id) * multiplier_; }

    bool has_keys_;
    int64_t num_groups_;
    int64_t num_keys_ = 0;
    uint64_t multiplier_;
    uint32_t key_mask_;
    int shift_;
};

// The next uses of the accesses of a trace, and of rows that are in a cache before it.
//
// A next use is a position (see TracePositions); or where there is none, the number of batches
// that need the row, and of times it was needed before the trace, below zero. If a row is repeated
// in a batch, each of its accesses there points to the one behind it in the batch, if there is one.
template <class Id>
class NextUses {
public:
    // uses [num_slots + num_ids] is memory that is free again once all next uses are taken. From
    // misses [num_batches] it takes the accesses that are repeated in a batch.
    NextUses(const Trace<Id> &trace, const TracePositions &positions, int64_t num_slots,
             const int64_t *nodes, const int32_t *frequencies, int32_t *uses, int64_t *misses);

    // Calls use(k, next use) for the accesses from the last to the first; what is taken must be
    // the last that was not taken yet.
    template <class Use>
    void take(int64_t begin, int64_t end, const Use &use) {
        const RowGroups groups = groups_;  // a copy: stores cannot change it
        const Id *const ids = trace_.ids;
        const int32_t *const uses = uses_;
        uint32_t *const ends = ends_.data();
        for (int64_t k = end - 1; k >= begin; --k) {
            const int64_t place = --ends[groups.group(ids[k])];
            // The line before, of each group: too many streams for the hardware to see. It halves
            // the time. Outside of the array, it does nothing.
            prefetch_place(uses, place - line);
            use(k, uses[place]);
        }
    }

    // The same for the rows in slots, apart from accesses.
    int32_t take_carried(int64_t node) {
        return uses_[--carried_ends_[static_cast<size_t>(groups_.group(node))]];
    }

private:
    static constexpr int64_t line = 16;  // values in a cache line
    // What is put into a group: a row's key, and how far into a window of the trace it stands.
    static constexpr int window_bits = 32 - RowGroups::key_bits;

    static void prefetch_place(const int32_t *uses, int64_t place) {
        __builtin_prefetch(reinterpret_cast<const void *>(
            reinterpret_cast<uintptr_t>(uses) + static_cast<uintptr_t>(place) * sizeof(int32_t)));
    }
    void fill_groups();
    template <class Table, class KeyAt>
    void link(Table &table, const KeyAt &key_at, int64_t *misses);

    const Trace<Id> trace_;
    const TracePositions &positions_;
    const int64_t *const nodes_;
    const int32_t *const frequencies_;
    const int64_t num_slots_;
    const RowGroups groups_;
    int32_t *const uses_;                  // rows in slots by group, then accesses by group
    std::vector<uint32_t> ends_;           // of each group's accesses that are not taken
    std::vector<uint32_t> carried_ends_;   // of each group's rows in slots
    std::vector<uint32_t> window_begins_;  // in each group, of the accesses of each window
};

}  // namespace gnnstore
