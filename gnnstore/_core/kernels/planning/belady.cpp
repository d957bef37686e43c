// Plans of traces in memory. Next uses take the place of the slots that are the result, so that
// beside it there is memory for the slots and for one batch only.
#include "kernels/planning/belady.h"

#include <algorithm>
#include <vector>

#include "kernels/base/parallel.h"
#include "kernels/base/pooled_array.h"
#include "kernels/planning/batch_turns.h"
#include "kernels/planning/belady_planner.h"
#include "kernels/traces/next_uses.h"
#include "kernels/traces/superbatch.h"

namespace gnnstore {
namespace {

// See Planner.
template <class IdType>
class AccessesInMemory {
public:
    using Id = IdType;

    AccessesInMemory(const Trace<Id> &trace, const TracePositions &positions, int64_t num_slots,
                     const int64_t *nodes, const int32_t *frequencies, int32_t *slots,
                     int64_t *misses, int num_threads)
        : trace_(trace),
          num_slots_(num_slots),
          longest_batch_(longest_batch(trace)),
          next_(slots),
          // One piece, since each piece of the pool ends within a huge page.
          memory_(entered_begin() + longest_batch_ + 1),
          team_(longest_batch_ < BatchTurns::least_rows ? 1 : std::min(num_threads, 2)),
          turns_(trace.num_batches, /*are_two=*/true, team_),
          next_uses_(trace, positions, num_slots, nodes, frequencies, slots,
                     static_cast<int32_t *>(slots_bytes()), misses, num_threads) {
        const auto num_batches = static_cast<size_t>(trace.num_batches);
        changes_.offsets.reserve(num_batches + 1);
        changes_.offsets.push_back(0);
        // A row that enters is read from its slot later, or stays to the end: there are at most
        // half as many of them as accesses and slots. Unused capacity takes no memory.
        const auto most = static_cast<size_t>((num_slots + trace.num_ids) / 2 + 1);
        changes_.positions.reserve(most);
        changes_.slots.reserve(most);
    }

    const int64_t *offsets() const { return trace_.offsets; }
    int64_t num_batches() const { return trace_.num_batches; }
    int32_t *carried_next() const { return memory_.data() + carried_begin(); }

    const int32_t *take_next(int64_t batch) const { return next(batch, batch - 1); }
    bool add_uses(int64_t batch, UsesInBatch *uses) const {
        return next_uses_.add_uses(batch, uses);
    }
    void finish_next() { next_uses_.take_carried(carried_next()); }

    const int32_t *next(int64_t batch, int64_t) const { return next_ + trace_.offsets[batch]; }
    void *slots_bytes() const { return memory_.data(); }

    template <class Begin>
    const int32_t *open(int64_t batch, const Begin &begin) {
        const auto begin_here = [this, &begin](int64_t i) {
            return [slots = slots_of(i), begin_slots = begin(i)] { begin_slots(slots); };
        };
        turns_.open(batch, begin_here, [this](int64_t i) { put_slots(i); });
        open_ = batch;
        return next(batch, batch);
    }
    const Id *ids(int64_t batch) const { return trace_.ids + trace_.offsets[batch]; }
    PlannedRows planned() const {
        int32_t *const memory = memory_.data();
        return {slots_of(open_), memory + positions_begin(), memory + entered_begin()};
    }

    void put(int64_t, int64_t num_entering) {
        const auto [slots, positions, entered] = planned();
        changes_.positions.insert(changes_.positions.end(), positions, positions + num_entering);
        changes_.slots.insert(changes_.slots.end(), entered, entered + num_entering);
        changes_.offsets.push_back(static_cast<int64_t>(changes_.slots.size()));
    }
    void finish() {
        turns_.close([this](int64_t i) { put_slots(i); });
    }
    void stop() noexcept { turns_.stop(); }

    CacheChanges take_changes() { return std::move(changes_); }

private:
    // Parts of memory_. First the slots' part, which NextUses has before, and which is at least as
    // large as it needs.
    int64_t carried_begin() const {
        return planner_slots_bytes(trace_.num_batches, num_slots_) / int64_t{sizeof(int32_t)} + 2;
    }
    int64_t slots_begin() const { return carried_begin() + num_slots_ + 1; }
    int64_t positions_begin() const { return slots_begin() + 2 * longest_batch_; }
    int64_t entered_begin() const { return positions_begin() + longest_batch_ + 1; }

    // The slots of a batch in the forward pass, until they take the place of its next uses.
    int32_t *slots_of(int64_t batch) const {
        return memory_.data() + slots_begin() + batch % 2 * longest_batch_;
    }
    void put_slots(int64_t batch) {
        const int64_t begin = trace_.offsets[batch];
        std::copy_n(slots_of(batch), trace_.offsets[batch + 1] - begin, next_ + begin);
    }

    const Trace<Id> trace_;
    const int64_t num_slots_;
    const int64_t longest_batch_;
    int32_t *const next_;  // [num_ids]; and the slots that are the result, batch after batch
    const PooledArray<int32_t> memory_;
    int64_t open_ = 0;  // a batch
    Team team_;
    BatchTurns turns_;
    NextUses<Id> next_uses_;
    CacheChanges changes_;
};

}  // namespace

template <class Id>
CacheChanges plan_belady(const Trace<Id> &trace, int64_t num_slots, int64_t *nodes,
                         int32_t *frequencies, int32_t *slots, int64_t *misses, int num_threads) {
    check_num_threads(num_threads);
    check_offsets(trace);
    check_cache(num_slots, nodes, frequencies);
    for (int64_t i = 0; i < trace.num_batches; ++i)
        misses[i] = trace.offsets[i + 1] - trace.offsets[i];
    const TracePositions positions(trace.offsets, trace.num_batches);
    AccessesInMemory<Id> accesses(trace, positions, num_slots, nodes, frequencies, slots, misses,
                                  num_threads);
    Planner(accesses, positions, num_slots, nodes, frequencies, misses).run();
    return accesses.take_changes();
}

template CacheChanges plan_belady(const Trace<int32_t> &, int64_t, int64_t *, int32_t *, int32_t *,
                                  int64_t *, int);
template CacheChanges plan_belady(const Trace<int64_t> &, int64_t, int64_t *, int32_t *, int32_t *,
                                  int64_t *, int);

}  // namespace gnnstore
