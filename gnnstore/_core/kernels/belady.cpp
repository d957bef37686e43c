// Plans of traces in memory. Next uses take the place of the slots that are the result, and are
// found in groups of rows: with a table of all rows, and slots written to wherever they are read
// next, 64 batches of 135,000 rows took 1.3 to 1.7 times as long and 21 bytes an access; now they
// take 6.
#include "kernels/belady.h"

#include <algorithm>
#include <vector>

#include "kernels/belady_planner.h"
#include "kernels/next_uses.h"
#include "kernels/pooled_array.h"
#include "kernels/superbatch.h"

namespace gnnstore {
namespace {

// See Planner.
template <class IdType>
class AccessesInMemory {
public:
    using Id = IdType;

    AccessesInMemory(const Trace<Id> &trace, const TracePositions &positions, int64_t num_slots,
                     const int64_t *nodes, const int32_t *frequencies, int32_t *slots,
                     int64_t *misses)
        : trace_(trace),
          positions_(positions),
          num_slots_(num_slots),
          nodes_(nodes),
          next_(slots),
          // One piece, since each piece of the pool ends within a huge page.
          memory_(slots_begin() +
                  planner_slots_bytes(trace.num_batches, num_slots) / int64_t{sizeof(int32_t)}),
          scratch_(memory_.data()),
          next_uses_(trace, positions, num_slots, nodes, frequencies, scratch_, misses) {
        changes_.offsets.reserve(static_cast<size_t>(trace.num_batches) + 1);
        changes_.offsets.push_back(0);
    }

    const int64_t *offsets() const { return trace_.offsets; }
    int64_t num_batches() const { return trace_.num_batches; }
    int32_t *carried_next() const { return scratch_ + carried_begin(); }

    const int32_t *take_next(int64_t batch, int64_t *uses) {
        const int64_t *const offsets = trace_.offsets;
        int32_t *const next = next_;
        const auto end_of_trace = positions_.end();
        next_uses_.take(offsets[batch], offsets[batch + 1], [&](int64_t k, int32_t use) {
            next[k] = use;
            ++uses[positions_.batch(use < 0 ? end_of_trace : use)];
        });
        return next_ + offsets[batch];
    }

    void finish_next() {
        int32_t *const first_uses = carried_next();
        for (int64_t slot = num_slots_ - 1; slot >= 0; --slot)
            first_uses[slot] =
                nodes_[slot] < 0 ? positions_.end() : next_uses_.take_carried(nodes_[slot]);
    }

    const int32_t *next(int64_t batch) const { return next_ + trace_.offsets[batch]; }
    const Id *ids(int64_t batch) const { return trace_.ids + trace_.offsets[batch]; }
    void *slots_bytes() const { return scratch_ + slots_begin(); }

    int32_t *slots() const { return carried_next() + num_slots_; }
    // A row that enters is read from its slot later, or stays to the end: there are at most half
    // as many of them as accesses and slots.
    int32_t *positions() const { return scratch_ + num_changes_; }
    int32_t *entered() const { return positions() + (num_slots_ + trace_.num_ids) / 2 + 1; }

    void put(int64_t batch, int64_t num_entering) {
        const int64_t begin = trace_.offsets[batch];
        std::copy_n(slots(), trace_.offsets[batch + 1] - begin, next_ + begin);
        num_changes_ += num_entering;
        changes_.offsets.push_back(num_changes_);
    }

    CacheChanges take_changes() {
        const int64_t count = std::exchange(num_changes_, 0);
        changes_.positions.assign(positions(), positions() + count);
        changes_.slots.assign(entered(), entered() + count);
        return std::move(changes_);
    }

private:
    // Of memory_, in the order in which it is used, so that what is not needed by few slots or
    // batches is never touched.
    int64_t carried_begin() const { return trace_.num_ids + num_slots_ + 3; }
    int64_t slots_begin() const {
        const int64_t before = carried_begin() + num_slots_ + 1 + longest_batch(trace_);
        return before + before % 2;
    }

    const Trace<Id> trace_;
    const TracePositions &positions_;
    const int64_t num_slots_;
    const int64_t *const nodes_;
    int32_t *const next_;  // [num_ids]; and the slots that are the result, batch after batch
    const PooledArray<int32_t> memory_;
    int32_t *const scratch_;  // [num_slots + num_ids + 2]: of next uses, then changes
    NextUses<Id> next_uses_;
    int64_t num_changes_ = 0;
    CacheChanges changes_;
};

}  // namespace

template <class Id>
CacheChanges plan_belady(const Trace<Id> &trace, int64_t num_slots, int64_t *nodes,
                         int32_t *frequencies, int32_t *slots, int64_t *misses) {
    check_offsets(trace);
    check_cache(num_slots, nodes, frequencies);
    for (int64_t i = 0; i < trace.num_batches; ++i)
        misses[i] = trace.offsets[i + 1] - trace.offsets[i];
    const TracePositions positions(trace.offsets, trace.num_batches);
    AccessesInMemory<Id> accesses(trace, positions, num_slots, nodes, frequencies, slots, misses);
    Planner(accesses, positions, num_slots, nodes, frequencies, misses).run();
    return accesses.take_changes();
}

template CacheChanges plan_belady(const Trace<int32_t> &, int64_t, int64_t *, int32_t *, int32_t *,
                                  int64_t *);
template CacheChanges plan_belady(const Trace<int64_t> &, int64_t, int64_t *, int32_t *, int32_t *,
                                  int64_t *);

}  // namespace gnnstore
