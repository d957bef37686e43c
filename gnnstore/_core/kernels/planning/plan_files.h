// A plan of a superbatch on its way to files: what its passes read and write there, a batch at a
// time. See plan_belady_spilled.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/base/parallel.h"
#include "kernels/files/spill_file.h"
#include "kernels/planning/batch_turns.h"
#include "kernels/planning/belady_planner.h"
#include "kernels/planning/belady_spilled.h"

namespace gnnstore {

// The trace and the plan. Between the passes next uses may lie in the file of slots, which take
// their places.
template <class IdType>
class PlanFiles {
public:
    using Id = IdType;

    PlanFiles(const SpilledTrace &trace, const SpilledPlan &plan) : trace_(trace), plan_(plan) {
        plan.change_offsets[0] = 0;
        plan.slots.reserve(4 * trace.offsets[trace.num_batches]);
    }

    const SpilledTrace &trace() const { return trace_; }
    const SpilledPlan &plan() const { return plan_; }
    bool has(int64_t batch) const { return batch >= 0 && batch < trace_.num_batches; }
    int64_t size_of(int64_t batch) const {
        return trace_.offsets[batch + 1] - trace_.offsets[batch];
    }

    // following: the batch that is read next.
    void read_ids(int64_t batch, int64_t following, Id *ids) const {
        constexpr int64_t size = sizeof(Id);
        trace_.file.read(ids, size * size_of(batch), trace_.begins[batch], trace_.crcs[batch],
                         batch);
        if (has(following))
            trace_.file.will_need(size * size_of(following), trace_.begins[following]);
    }
    void read_next(int64_t batch, int64_t following, int32_t *next) const {
        plan_.slots.read(next, 4 * size_of(batch), 4 * trace_.offsets[batch],
                         plan_.slot_crcs[batch], batch);
        if (has(following))
            plan_.slots.will_need(4 * size_of(following), 4 * trace_.offsets[following]);
    }
    // Write a batch's slots, or its next uses.
    void write_slots(int64_t batch, const int32_t *values) const {
        const int64_t num_bytes = 4 * size_of(batch);
        plan_.slots.write(values, num_bytes, 4 * trace_.offsets[batch]);
        plan_.slot_crcs[batch] = SpillFile::checksum(values, num_bytes, batch);
    }
    // The positions of the rows that enter after the batch, and behind them their slots.
    void write_changes(int64_t batch, const int32_t *changes) const {
        const int64_t begin = plan_.change_offsets[batch];
        const int64_t num_bytes = 8 * (plan_.change_offsets[batch + 1] - begin);
        plan_.changes.write(changes, num_bytes, 8 * begin);
        plan_.change_crcs[batch] = SpillFile::checksum(changes, num_bytes, batch);
    }

private:
    const SpilledTrace trace_;
    const SpilledPlan plan_;
};

// A batch in the forward pass, with its next uses and ids: parts of one piece of memory.
template <class Id>
struct PlannedBatch : PlannedRows {
    PlannedBatch(int32_t *begin, int64_t longest_batch)
        : PlannedRows{begin + even(longest_batch), begin + 2 * even(longest_batch),
                      begin + 2 * even(longest_batch) + even(longest_batch + 1)},
          next(begin),
          ids(reinterpret_cast<Id *>(entered + even(longest_batch))) {}

    // Values of 4 bytes.
    static int64_t size(int64_t longest_batch) {
        constexpr int64_t id_size = sizeof(Id) / sizeof(int32_t);
        return (3 + id_size) * even(longest_batch) + even(longest_batch + 1);
    }
    static int64_t even(int64_t size) { return (size + 1) / 2 * 2; }

    int32_t *next;
    Id *ids;
};

// The batches of the forward pass, on their way to the files.
template <class Id>
class PlannedBatches {
public:
    // Memory for even and for odd batches; null: odd ones share the memory of even ones.
    PlannedBatches(const PlanFiles<Id> &files, int64_t longest_batch, int32_t *even,
                   int32_t *odd, Team &team)
        : files_(files),
          batches_{PlannedBatch<Id>(even, longest_batch),
                   PlannedBatch<Id>(odd == nullptr ? even : odd, longest_batch)},
          turns_(files.trace().num_batches, odd != nullptr, team) {}

    // See Planner. read_next: whether next uses are in the file.
    template <class Begin>
    const PlannedBatch<Id> &open(int64_t batch, const Begin &begin, bool read_next) {
        const auto begin_here = [this, read_next, &begin](int64_t i) {
            return [this, read_next, i, task = begin(i)] {
                const PlannedBatch<Id> &rows = batches_[i % 2];
                if (read_next) files_.read_next(i, i + 1, rows.next);
                if (task.needs_ids) files_.read_ids(i, i + 1, rows.ids);
                task(rows.slots);
            };
        };
        turns_.open(batch, begin_here, [this](int64_t i) { write(i); });
        open_ = batch % 2;
        return current();
    }
    const PlannedBatch<Id> &current() const { return batches_[open_]; }

    void put(int64_t batch, int64_t num_entering) {
        // One behind the other.
        std::copy_n(current().entered, num_entering, current().positions + num_entering);
        int64_t *const offsets = files_.plan().change_offsets;
        offsets[batch + 1] = offsets[batch] + num_entering;
    }
    void finish() {
        turns_.close([this](int64_t i) { write(i); });
    }
    void stop() noexcept { turns_.stop(); }

private:
    void write(int64_t batch) const {
        files_.write_slots(batch, batches_[batch % 2].slots);
        files_.write_changes(batch, batches_[batch % 2].positions);
    }

    const PlanFiles<Id> &files_;
    PlannedBatch<Id> batches_[2];  // of even and odd ones
    int64_t open_ = 0;
    BatchTurns turns_;
};

}  // namespace gnnstore
