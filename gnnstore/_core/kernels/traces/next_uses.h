// For each access of a trace, where its row is used next, found in memory that goes with the
// trace and never with the graph.
//
// A table of all rows is looked at in random order, and waits for memory at each access. So the
// accesses are first put into groups by their rows, window by window of the trace, and each window
// in its own place: both a window and the table of a group fit in a core's own cache. Then each
// group goes through its parts of all windows, and the next uses found take the place of the
// accesses. Going through a window once more takes them out in the order in which they went in.
//
// All of it happens in the place of the result. With groups that lie in one piece each, next uses
// took 4 bytes an access more, and their first touch alone as long as finding them.
//
// Where groups have keys, ids are looked at window by window only: so they may lie in a file.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "kernels/base/parallel.h"
#include "kernels/traces/superbatch.h"
#include "kernels/traces/trace_positions.h"
#include "kernels/traces/trace_windows.h"

namespace gnnstore {

// Puts rows into groups. Dense ids are told apart in their group by a key of few bits.
class RowGroups {
public:
    // With 8 bytes each, 512 KiB of a core's second cache.
    static constexpr int key_bits = 16;

    // For ids up to `largest` in so many places.
    RowGroups(int64_t largest, int64_t num_accesses);

    bool has_keys() const { return has_keys_; }
    int64_t num_groups() const { return num_groups_; }
    int64_t num_keys() const { return num_keys_; }

    template <bool has_keys>
    int64_t group(int64_t id) const {
        if constexpr (has_keys) return id >> key_bits;
        return static_cast<int64_t>(mixed(id) >> shift_);
    }
    int64_t group(int64_t id) const { return has_keys_ ? group<true>(id) : group<false>(id); }
    static uint32_t key(int64_t id) {
        return static_cast<uint32_t>(id) & ((uint32_t{1} << key_bits) - 1);
    }
    // Bits that differ among the rows of a group, in the highest ones first. Without keys.
    uint64_t mixed_in_group(int64_t id) const { return mixed(id) << (64 - shift_); }

private:
    static uint64_t mixed(int64_t id);

    bool has_keys_;
    int64_t num_groups_;
    int64_t num_keys_ = 0;
    int shift_ = 0;
};

// Ids of a trace that lie in a file.
template <class Id>
class TraceIds {
public:
    // Reads the ids of the accesses from `begin` to `end`, which are whole batches. Called by
    // many threads at once.
    virtual void read(int64_t begin, int64_t end, Id *ids) const = 0;

protected:
    ~TraceIds() = default;
};

// The next uses of the accesses of a trace, and of rows that are in a cache before it.
//
// A next use is a position (see TracePositions); or where there is none, the number of batches
// that need the row, and of times it was needed before the trace, below zero. If a row is repeated
// in a batch, each of its accesses there points to the one behind it in the batch, if there is one.
template <class Id>
class NextUses {
public:
    // Fills uses [num_ids]. carried [num_slots] is memory that is needed until take_carried. From
    // misses [num_batches] it takes the accesses that are repeated in a batch. Long traces are
    // shared out among up to num_threads threads.
    NextUses(const Trace<Id> &trace, const TracePositions &positions, int64_t num_slots,
             const int64_t *nodes, const int32_t *frequencies, int32_t *uses, int32_t *carried,
             int64_t *misses, int num_threads);
    // The same where trace.ids is null: windows are of whole batches, and groups have keys.
    NextUses(const Trace<Id> &trace, const TraceIds<Id> &file, TraceWindows windows,
             const RowGroups &groups, const TracePositions &positions, int64_t num_slots,
             const int64_t *nodes, const int32_t *frequencies, int32_t *uses, int32_t *carried,
             int64_t *misses, int num_threads);

    // The most memory that it takes in the latter case, beside what it is given.
    static int64_t working_bytes(const TraceWindows &windows, const RowGroups &groups,
                                 int64_t num_batches, int num_threads);

    // Adds the next uses of a batch to `uses` [num_batches + 1], by the batch that they are in;
    // rows not used again to the last one. False: they are not counted, since batches are too many.
    bool add_uses(int64_t batch, UsesInBatch *uses) const;

    // The next uses of rows in slots, into first_uses [num_slots]; behind the trace where a slot
    // has no row.
    void take_carried(int32_t *first_uses);

private:
    // Whose part of a group is fetched before it is needed.
    static constexpr int64_t windows_ahead = 4;
    static constexpr int64_t line = 16;  // values in a cache line
    // Accesses whose places are found before anything is written to one of them: a core reads no
    // counter while it does not know yet where the writes before go.
    static constexpr int64_t block = 256;

    uint16_t &begin_of(int64_t group, int64_t w) {
        return begins_[static_cast<size_t>(group * windows_.num_windows() + w)];
    }

    NextUses(const Trace<Id> &trace, const TraceIds<Id> *file, TraceWindows windows,
             const RowGroups &groups, const TracePositions &positions, int64_t num_slots,
             const int64_t *nodes, const int32_t *frequencies, int32_t *uses, int32_t *carried,
             int64_t *misses, int num_threads);
    template <bool has_keys, class Table>
    void find(int64_t *misses);
    void fill_carried();
    // Calls use(window, its ids) for all windows of the stretches.
    template <class Use>
    void for_windows(TaskQueue &stretches, const Use &use) const;
    template <bool has_keys>
    void fill_window(int64_t w, const Id *ids, uint32_t *places);
    template <bool has_keys, class Table>
    void link(int64_t group, Table &table, int64_t *misses);
    template <bool has_keys>
    void take_window(int64_t w, const Id *ids, uint32_t *places, int32_t *held);
    void count_window(int64_t w);
    UsesInBatch *counts_of(int64_t w, int64_t batch) {
        return counts_.data() + (w + batch) * (trace_.num_batches + 1);
    }

    const Trace<Id> trace_;
    const TraceIds<Id> *const file_;  // null: they are in memory
    const TraceWindows windows_;
    const TracePositions &positions_;
    const int64_t *const nodes_;
    const int32_t *const frequencies_;
    const int64_t num_slots_;
    const int num_threads_;
    const RowGroups groups_;
    int32_t *const uses_;                 // accesses by window and group, at last as they came
    int32_t *const carried_;              // rows in slots by group
    std::vector<uint16_t> begins_;        // [num_groups + 1][num_windows] in each window
    std::vector<uint32_t> carried_ends_;  // of each group's rows in slots
    // Accesses of each batch in each window, counted by the batch of their next use: a row for each
    // step from one window or batch to the next. Empty: they are not counted.
    std::vector<UsesInBatch> counts_;
};

}  // namespace gnnstore
