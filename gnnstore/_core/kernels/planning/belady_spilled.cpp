#include "kernels/planning/belady_spilled.h"

#include <algorithm>
#include <atomic>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "kernels/base/check_ids.h"
#include "kernels/base/errors.h"
#include "kernels/base/parallel.h"
#include "kernels/base/pooled_array.h"
#include "kernels/planning/belady_planner.h"
#include "kernels/planning/plan_files.h"
#include "kernels/traces/next_uses.h"
#include "kernels/traces/superbatch.h"
#include "kernels/traces/use_table.h"

namespace gnnstore {
namespace {

// Where in a piece of memory its parts begin, in values of 4 bytes.
class Parts {
public:
    // Room for so many bytes, aligned to 8.
    int64_t add(int64_t num_bytes) {
        const int64_t begin = size_;
        size_ += (num_bytes + 7) / 8 * 2;
        return begin;
    }
    int64_t size() const { return size_; }

private:
    int64_t size_ = 0;
};

// See Planner. Next uses are found by a table of nodes, in as many rounds as it takes, and lie in
// the file of slots between the passes.
template <class IdType>
class AccessesInFiles {
public:
    using Id = IdType;

    AccessesInFiles(const PlanFiles<Id> &files, const TracePositions &positions,
                    int64_t longest_batch, int64_t num_slots, const int64_t *nodes,
                    const int32_t *frequencies, int64_t table_bytes, int num_threads)
        : files_(files),
          trace_(files.trace()),
          positions_(positions),
          num_slots_(num_slots),
          nodes_(nodes),
          frequencies_(frequencies),
          table_nodes_(std::clamp<int64_t>(table_bytes / 4, 1,
                                           std::max<int64_t>(trace_.num_nodes, 1))),
          carried_(parts_.add(4 * (num_slots + 2)) + 2),
          // The table first, then what goes with slots.
          shared_(parts_.add(std::max(
              4 * table_nodes_, planner_slots_bytes(trace_.num_batches, num_slots)))),
          planned_(parts_.add(4 * PlannedBatch<Id>::size(longest_batch))),
          // One piece, since each piece of the pool ends within a huge page.
          memory_(parts_.size()),
          longest_batch_(longest_batch),
          num_tables_(longest_batch < BatchTurns::least_rows ? 1
                                                             : std::min(num_threads, max_tables)),
          team_(num_tables_),
          batches_(files, longest_batch, part(planned_), second_planned(), team_),
          linked_{{batches_.current().ids, batches_.current().next},
                  {reinterpret_cast<Id *>(batches_.current().slots),
                   batches_.current().entered}} {
        std::fill_n(carried_next(), num_slots, positions.end());
        const auto num_batches = static_cast<size_t>(trace_.num_batches);
        // With few and long batches only: for each batch, the counts of all are looked at.
        if (table_nodes_ >= trace_.num_nodes &&
            trace_.num_batches * trace_.num_batches <= trace_.offsets[trace_.num_batches] / 4)
            counts_.assign(static_cast<size_t>(num_tables_),
                           std::vector<UsesInBatch>(num_batches + 1));
        start_round(0);
        for (int64_t first = table_nodes_; first < trace_.num_nodes; first += table_nodes_) {
            for (int64_t batch = trace_.num_batches - 1; batch >= 0; --batch) link(batch);
            finish_next();
            start_round(first);
        }
    }

    const int64_t *offsets() const { return trace_.offsets; }
    int64_t num_batches() const { return trace_.num_batches; }
    int32_t *carried_next() const { return part(carried_); }

    // In the last round, so that all next uses are there.
    const int32_t *take_next(int64_t batch) { return link(batch); }

    bool add_uses(int64_t, UsesInBatch *uses) {
        for (std::vector<UsesInBatch> &counts : counts_) {
            for (size_t i = 0; i < counts.size(); ++i) uses[i].even += counts[i].even;
            std::ranges::fill(counts, UsesInBatch{});
        }
        return !counts_.empty();
    }
    void finish_next() {
        if (trace_.num_batches > 0) files_.write_slots(0, linked_[1].next);
        team_.run(num_tables_, [&](int64_t i) {
            table(i).finish(nodes_, num_slots_, carried_next());
        });
    }

    const int32_t *next(int64_t batch, int64_t following) const {
        int32_t *const found = batches_.current().next;
        files_.read_next(batch, following, found);
        return found;
    }
    void *slots_bytes() const { return part(shared_); }

    template <class Begin>
    const int32_t *open(int64_t batch, const Begin &begin) {
        return batches_.open(batch, begin, /*read_next=*/true).next;
    }
    const Id *ids(int64_t) const { return batches_.current().ids; }
    PlannedRows planned() const { return batches_.current(); }
    void put(int64_t batch, int64_t num_entering) { batches_.put(batch, num_entering); }
    void finish() { batches_.finish(); }
    void stop() noexcept { batches_.stop(); }

private:
    int32_t *part(int64_t begin) const { return memory_.data() + begin; }

    // The forward pass's memory where the table was, behind what goes with slots; null: no room.
    int32_t *second_planned() const {
        Parts parts;
        parts.add(planner_slots_bytes(trace_.num_batches, num_slots_));
        const int64_t begin = parts.size();
        const bool fits = begin + PlannedBatch<Id>::size(longest_batch_) <= table_nodes_;
        return fits ? part(shared_) + begin : nullptr;
    }

    // Each looks at all ids of a batch; while they count, each has them once more, where there are 16
    // bytes a row beside the ids of the first.
    static constexpr int max_tables = std::min<int>(4, 1 + 16 / sizeof(Id));

    // A batch in the backward pass.
    struct Linked {
        Id *ids;
        int32_t *next;
    };

    // Each table serves a range of the round's nodes, so that they can be used at once: threads wait
    // for memory, which is what most of this takes.
    UseTable &table(int64_t i) { return tables_[static_cast<size_t>(i)]; }

    void start_round(int64_t first) {
        first_node_ = first;
        const int64_t num_nodes = std::min(table_nodes_, trace_.num_nodes - first);
        tables_.clear();
        for (int64_t i = 0; i < num_tables_; ++i) {
            const int64_t begin = num_nodes * i / num_tables_;
            const int64_t end = num_nodes * (i + 1) / num_tables_;
            tables_.emplace_back(reinterpret_cast<uint32_t *>(part(shared_)) + begin,
                                 first + begin, end - begin);
        }
        team_.run(num_tables_, [&](int64_t i) { count(i); });
    }

    // Every thread reads all batches on its own: to wait for each other would take longer. One
    // checks the ids, which are the same for all by a checksum.
    void count(int64_t i) {
        // The first where ids lie, the others before them, where nothing is yet.
        Id *const before = reinterpret_cast<Id *>(part(planned_));
        Id *const ids = i == 0 ? batches_.current().ids : before + (i - 1) * longest_batch_;
        table(i).start(nodes_, frequencies_, num_slots_);
        for (int64_t batch = 0; batch < trace_.num_batches; ++batch) {
            const int64_t size = files_.size_of(batch);
            files_.read_ids(batch, batch + 1, ids);
            if (first_node_ == 0 && i == 0) check_ids(ids, size, trace_.num_nodes);
            const int64_t num_repeated = table(i).count(batch, ids, size);
            if (num_repeated > 0)
                std::atomic_ref(files_.plan().misses[batch])
                    .fetch_sub(num_repeated, std::memory_order_relaxed);
        }
    }

    // Completes the next uses of a batch for the nodes of this round; from the last batch to the
    // first. Meanwhile the next uses of the batch behind it are written, and in their place the
    // batch before it is read.
    const int32_t *link(int64_t batch) {
        const auto read = [&](int64_t wanted, const Linked &into) {
            if (wanted < 0) return;
            files_.read_ids(wanted, wanted - 1, into.ids);
            if (first_node_ > 0) files_.read_next(wanted, wanted - 1, into.next);
        };
        const bool is_last = batch == trace_.num_batches - 1;
        if (is_last) read(batch, linked_[0]);
        const auto [ids, next] = linked_[0];
        const int64_t size = files_.size_of(batch);
        const TracePositions::Batches batches = positions_.batches();
        const int32_t first = positions_.begin(batch), end = positions_.end();
        team_.run(num_tables_ + 1, [&](int64_t i) {
            if (i == num_tables_) {
                if (!is_last) files_.write_slots(batch + 1, linked_[1].next);
                read(batch - 1, linked_[1]);
            } else if (counts_.empty()) {
                table(i).link(ids, size, first, next, [](int32_t) {});
            } else {
                UsesInBatch *const uses = counts_[static_cast<size_t>(i)].data();
                table(i).link(ids, size, first, next, [&](int32_t use) {
                    ++uses[batches.of(use < 0 ? end : use)].even;
                });
            }
        });
        std::swap(linked_[0], linked_[1]);
        return next;
    }

    const PlanFiles<Id> &files_;
    const SpilledTrace &trace_;
    const TracePositions &positions_;
    const int64_t num_slots_;
    const int64_t *const nodes_;
    const int32_t *const frequencies_;
    const int64_t table_nodes_;  // of one round
    Parts parts_;
    const int64_t carried_, shared_, planned_;
    const PooledArray<int32_t> memory_;
    const int64_t longest_batch_;
    const int num_tables_;
    std::vector<UseTable> tables_;
    std::vector<std::vector<UsesInBatch>> counts_;  // of the batch linked latest, by table
    int64_t first_node_ = 0;
    Team team_;
    PlannedBatches<Id> batches_;
    Linked linked_[2];  // of the batch that is linked next, and of the other
};

// See Planner. Next uses lie in memory, where they take no more than a table of nodes would: on W,
// a third less time.
template <class IdType>
class AccessesBesideFiles final : TraceIds<IdType> {
public:
    using Id = IdType;

    AccessesBesideFiles(const PlanFiles<Id> &files, const TracePositions &positions,
                        int64_t longest_batch, int64_t num_slots, const int64_t *nodes,
                        const int32_t *frequencies, TraceWindows windows,
                        const RowGroups &groups, int num_threads)
        : files_(files),
          trace_(files.trace()),
          carried_(parts_.add(4 * (num_slots + 2)) + 2),
          slots_(parts_.add(planner_slots_bytes(trace_.num_batches, num_slots))),
          planned_(parts_.add(4 * PlannedBatch<Id>::size(longest_batch))),
          other_(parts_.add(4 * PlannedBatch<Id>::size(longest_batch))),
          next_(parts_.add(4 * num_ids())),
          memory_(parts_.size()),
          next_uses_({nullptr, num_ids(), trace_.offsets, trace_.num_batches}, *this,
                     std::move(windows), groups, positions, num_slots, nodes, frequencies,
                     part(next_), part(slots_), files.plan().misses, num_threads),
          team_(longest_batch < BatchTurns::least_rows ? 1 : std::min(num_threads, 2)),
          batches_(files, longest_batch, part(planned_), part(other_), team_) {}

    // Memory beside a table's, and of what AccessesInFiles has as well.
    static int64_t table_bytes(const SpilledTrace &trace, int64_t longest_batch,
                               int64_t num_slots, const TraceWindows &windows,
                               const RowGroups &groups, int num_threads) {
        return planner_slots_bytes(trace.num_batches, num_slots) +
               4 * PlannedBatch<Id>::size(longest_batch) + 4 * trace.offsets[trace.num_batches] +
               NextUses<Id>::working_bytes(windows, groups, trace.num_batches, num_threads);
    }

    const int64_t *offsets() const { return trace_.offsets; }
    int64_t num_batches() const { return trace_.num_batches; }
    int32_t *carried_next() const { return part(carried_); }

    const int32_t *take_next(int64_t batch) const { return next_of(batch); }
    bool add_uses(int64_t batch, UsesInBatch *uses) const {
        return next_uses_.add_uses(batch, uses);
    }
    void finish_next() { next_uses_.take_carried(carried_next()); }

    const int32_t *next(int64_t batch, int64_t) const { return next_of(batch); }
    void *slots_bytes() const { return part(slots_); }

    template <class Begin>
    const int32_t *open(int64_t batch, const Begin &begin) {
        batches_.open(batch, begin, /*read_next=*/false);
        return next_of(batch);
    }
    const Id *ids(int64_t) const { return batches_.current().ids; }
    PlannedRows planned() const { return batches_.current(); }
    void put(int64_t batch, int64_t num_entering) { batches_.put(batch, num_entering); }
    void finish() { batches_.finish(); }
    void stop() noexcept { batches_.stop(); }

private:
    int64_t num_ids() const { return trace_.offsets[trace_.num_batches]; }
    int32_t *part(int64_t begin) const { return memory_.data() + begin; }
    const int32_t *next_of(int64_t batch) const { return part(next_) + trace_.offsets[batch]; }

    void read(int64_t begin, int64_t end, Id *ids) const override {
        const int64_t *const offsets = trace_.offsets;
        int64_t batch = std::lower_bound(offsets, offsets + trace_.num_batches, begin) - offsets;
        for (; batch < trace_.num_batches && offsets[batch] < end; ++batch) {
            Id *const here = ids + offsets[batch] - begin;
            files_.read_ids(batch, batch + 1, here);
            check_ids(here, files_.size_of(batch), trace_.num_nodes);
        }
    }

    const PlanFiles<Id> &files_;
    const SpilledTrace &trace_;
    Parts parts_;
    const int64_t carried_, slots_, planned_, other_, next_;
    // One piece, since each piece of the pool ends within a huge page.
    const PooledArray<int32_t> memory_;
    NextUses<Id> next_uses_;
    Team team_;
    PlannedBatches<Id> batches_;
};

}  // namespace

template <class Id>
void plan_belady_spilled(const SpilledTrace &trace, int64_t num_slots, int64_t *nodes,
                         int32_t *frequencies, int64_t table_bytes, int num_threads,
                         const SpilledPlan &plan) {
    check_num_threads(num_threads);
    const Trace<Id> shape{nullptr, trace.offsets[std::max<int64_t>(trace.num_batches, 0)],
                          trace.offsets, trace.num_batches};
    check_offsets(shape);
    check_cache(num_slots, nodes, frequencies);
    if (trace.num_nodes < 0 || trace.num_nodes - 1 > std::numeric_limits<Id>::max())
        throw invalid("num_nodes must fit the ids, got ", trace.num_nodes);
    for (int64_t slot = 0; slot < num_slots; ++slot)
        require(nodes[slot] < trace.num_nodes, "slot ", slot, " holds row ", nodes[slot], ", but "
                "there are only ", trace.num_nodes);
    for (int64_t i = 0; i < trace.num_batches; ++i)
        plan.misses[i] = trace.offsets[i + 1] - trace.offsets[i];
    const TracePositions positions(trace.offsets, trace.num_batches);
    const PlanFiles<Id> files(trace, plan);
    const int64_t longest = longest_batch(shape);
    const auto run = [&](auto &&accesses) {
        Planner(accesses, positions, num_slots, nodes, frequencies, plan.misses).run();
    };
    using BesideFiles = AccessesBesideFiles<Id>;
    auto windows = TraceWindows::of_batches(trace.offsets, trace.num_batches);
    const RowGroups groups(trace.num_nodes - 1, shape.num_ids + num_slots);
    if (groups.has_keys() && BesideFiles::table_bytes(trace, longest, num_slots, windows, groups,
                                                      num_threads) <= table_bytes)
        run(BesideFiles(files, positions, longest, num_slots, nodes, frequencies,
                        std::move(windows), groups, num_threads));
    else
        run(AccessesInFiles<Id>(files, positions, longest, num_slots, nodes, frequencies,
                                table_bytes, num_threads));
}

template void plan_belady_spilled<int32_t>(const SpilledTrace &, int64_t, int64_t *, int32_t *,
                                           int64_t, int, const SpilledPlan &);
template void plan_belady_spilled<int64_t>(const SpilledTrace &, int64_t, int64_t *, int32_t *,
                                           int64_t, int, const SpilledPlan &);

}  // namespace gnnstore
