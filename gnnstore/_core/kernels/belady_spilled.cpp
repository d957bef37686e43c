#include "kernels/belady_spilled.h"

#include <algorithm>
#include <atomic>
#include <limits>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "kernels/belady_planner.h"
#include "kernels/check_ids.h"
#include "kernels/parallel.h"
#include "kernels/pooled_array.h"
#include "kernels/superbatch.h"
#include "kernels/use_table.h"

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

// See Planner. Between the passes next uses lie in the file of slots, which take their places.
template <class IdType>
class AccessesInFiles {
public:
    using Id = IdType;

    AccessesInFiles(const SpilledTrace &trace, const TracePositions &positions,
                    int64_t longest_batch, int64_t num_slots, const int64_t *nodes,
                    const int32_t *frequencies, int64_t table_bytes, int num_threads,
                    const SpilledPlan &plan)
        : trace_(trace),
          positions_(positions),
          num_slots_(num_slots),
          nodes_(nodes),
          frequencies_(frequencies),
          plan_(plan),
          table_nodes_(std::clamp<int64_t>(table_bytes / 4, 1,
                                           std::max<int64_t>(trace.num_nodes, 1))),
          carried_(parts_.add(4 * (num_slots + 2)) + 2),
          // The table first, then what goes with slots.
          shared_(parts_.add(std::max(
              4 * table_nodes_, planner_slots_bytes(trace.num_batches, num_slots)))),
          ids_(parts_.add(longest_batch * int64_t{sizeof(Id)})),
          place_(parts_.add(4 * Place::size(longest_batch))),
          // One piece, since each piece of the pool ends within a huge page.
          memory_(parts_.size()),
          longest_batch_(longest_batch),
          places_{Place(part(place_), longest_batch), Place(part(place_), longest_batch)},
          open_(places_[0]),
          linked_{{ids(), open_.next}, {reinterpret_cast<Id *>(open_.slots), open_.entered}},
          num_tables_(longest_batch < least_shared_batch ? 1 : std::min(num_threads, max_tables)),
          team_(num_tables_) {
        const int64_t other = planner_slots_bytes(trace.num_batches, num_slots) / 4 + 1;
        if (other + Place::size(longest_batch) <= table_nodes_) {
            places_[1] = Place(part(shared_) + other, longest_batch);
            has_two_places_ = true;
        }
        plan.change_offsets[0] = 0;
        plan.slots.reserve(4 * trace.offsets[trace.num_batches]);
        std::fill_n(carried_next(), num_slots, positions.end());
        const auto num_batches = static_cast<size_t>(trace.num_batches);
        // With few and long batches only: for each batch, the counts of all are looked at.
        if (table_nodes_ >= trace.num_nodes &&
            trace.num_batches * trace.num_batches <= trace.offsets[trace.num_batches] / 4)
            counts_.assign(static_cast<size_t>(num_tables_),
                           std::vector<UsesInBatch>(num_batches + 1));
        start_round(0);
        for (int64_t first = table_nodes_; first < trace.num_nodes; first += table_nodes_) {
            for (int64_t batch = trace.num_batches - 1; batch >= 0; --batch) link(batch);
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
        if (trace_.num_batches > 0) write_slots(0, linked_[1].next);
        team_.run(num_tables_, [&](int64_t i) {
            table(i).finish(nodes_, num_slots_, carried_next());
        });
    }

    const int32_t *next(int64_t batch, int64_t following) const {
        read_next(batch, following, open_.next);
        return open_.next;
    }
    void *slots_bytes() const { return part(shared_); }

    // Where there is memory for two, the batch before is written and the one behind it read while
    // this one is planned.
    const int32_t *open(int64_t batch) {
        team_.finish();
        if (batch == 0 || !has_two_places_) replace(batch - 1, batch);
        if (has_two_places_)
            team_.start(1, [this, batch](int64_t) { replace(batch - 1, batch + 1); });
        open_ = places_[batch % 2];
        return open_.next;
    }
    const Id *ids(int64_t batch) const {
        read_ids(batch, batch + 1, ids());
        return ids();
    }
    int32_t *slots() const { return open_.slots; }
    int32_t *positions() const { return open_.positions; }
    int32_t *entered() const { return open_.entered; }

    void put(int64_t batch, int64_t num_entering) {
        // One behind the other.
        std::copy_n(entered(), num_entering, positions() + num_entering);
        plan_.change_offsets[batch + 1] = plan_.change_offsets[batch] + num_entering;
    }
    void finish() {
        team_.finish();
        replace(trace_.num_batches - 1, trace_.num_batches);
    }

private:
    int32_t *part(int64_t begin) const { return memory_.data() + begin; }
    Id *ids() const { return reinterpret_cast<Id *>(part(ids_)); }
    int64_t size_of(int64_t batch) const {
        return trace_.offsets[batch + 1] - trace_.offsets[batch];
    }

    // Below, starting threads would take longer than what they do.
    static constexpr int64_t least_shared_batch = 1 << 15;
    // Each looks at all ids of a batch; while they count, each has them once more, where there are 16
    // bytes a row beside the ids of the first.
    static constexpr int max_tables = std::min<int>(4, 1 + 16 / sizeof(Id));

    // A batch in the backward pass.
    struct Linked {
        Id *ids;
        int32_t *next;
    };

    // A batch in the forward pass: parts of one piece of memory.
    struct Place {
        Place(int32_t *begin, int64_t longest_batch)
            : next(begin),
              slots(begin + even(longest_batch)),
              positions(begin + 2 * even(longest_batch)),
              entered(positions + even(longest_batch + 1)) {}

        static int64_t size(int64_t longest_batch) {
            return 3 * even(longest_batch) + even(longest_batch + 1);
        }
        static int64_t even(int64_t size) { return (size + 1) / 2 * 2; }

        int32_t *next, *slots, *positions, *entered;
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
    // checks the ids, which a checksum says are the same for all.
    void count(int64_t i) {
        // The first where ids lie, the others behind them, where nothing is yet.
        Id *const behind = reinterpret_cast<Id *>(part(place_));
        Id *const ids = i == 0 ? this->ids() : behind + (i - 1) * longest_batch_;
        table(i).start(nodes_, frequencies_, num_slots_);
        for (int64_t batch = 0; batch < trace_.num_batches; ++batch) {
            read_ids(batch, batch + 1, ids);
            if (first_node_ == 0 && i == 0) check_ids(ids, size_of(batch), trace_.num_nodes);
            const int64_t num_repeated = table(i).count(batch, ids, size_of(batch));
            if (num_repeated > 0)
                std::atomic_ref(plan_.misses[batch])
                    .fetch_sub(num_repeated, std::memory_order_relaxed);
        }
    }

    // Completes the next uses of a batch by those of the nodes that this round is for; from the
    // last batch to the first. Meanwhile those of the batch behind it are written, and in their
    // place the batch before it is read.
    const int32_t *link(int64_t batch) {
        const auto read = [&](int64_t wanted, const Linked &into) {
            if (wanted < 0) return;
            read_ids(wanted, wanted - 1, into.ids);
            if (first_node_ > 0) read_next(wanted, wanted - 1, into.next);
        };
        const bool is_last = batch == trace_.num_batches - 1;
        if (is_last) read(batch, linked_[0]);
        const auto [ids, next] = linked_[0];
        const TracePositions::Batches batches = positions_.batches();
        const int32_t first = positions_.begin(batch), end = positions_.end();
        team_.run(num_tables_ + 1, [&](int64_t i) {
            if (i == num_tables_) {
                if (!is_last) write_slots(batch + 1, linked_[1].next);
                read(batch - 1, linked_[1]);
            } else if (counts_.empty()) {
                table(i).link(ids, size_of(batch), first, next, [](int32_t) {});
            } else {
                UsesInBatch *const uses = counts_[static_cast<size_t>(i)].data();
                table(i).link(ids, size_of(batch), first, next, [&](int32_t use) {
                    ++uses[batches.of(use < 0 ? end : use)].even;
                });
            }
        });
        std::swap(linked_[0], linked_[1]);
        return next;
    }

    // Writes what was put for one batch, then reads the next uses of another.
    void replace(int64_t done, int64_t following) {
        if (has(done)) {
            const Place &place = places_[done % 2];
            write_slots(done, place.slots);
            const int64_t begin = plan_.change_offsets[done];
            const int64_t num_bytes = 8 * (plan_.change_offsets[done + 1] - begin);
            plan_.changes.write(place.positions, num_bytes, 8 * begin);
            plan_.change_crcs[done] = SpillFile::checksum(place.positions, num_bytes, done);
        }
        if (has(following)) read_next(following, following + 1, places_[following % 2].next);
    }

    bool has(int64_t batch) const { return batch >= 0 && batch < trace_.num_batches; }

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
    void write_slots(int64_t batch, const int32_t *values) {
        const int64_t num_bytes = 4 * size_of(batch);
        plan_.slots.write(values, num_bytes, 4 * trace_.offsets[batch]);
        plan_.slot_crcs[batch] = SpillFile::checksum(values, num_bytes, batch);
    }

    const SpilledTrace trace_;
    const TracePositions &positions_;
    const int64_t num_slots_;
    const int64_t *const nodes_;
    const int32_t *const frequencies_;
    const SpilledPlan plan_;
    const int64_t table_nodes_;  // of one round
    Parts parts_;
    const int64_t carried_, shared_, ids_, place_;
    const PooledArray<int32_t> memory_;
    const int64_t longest_batch_;
    // Of even and odd batches: the second where the table was, behind what goes with slots, if there
    // is room for it; otherwise the first again.
    Place places_[2];
    bool has_two_places_ = false;
    Place open_;
    Linked linked_[2];  // of the batch that is linked next, and of the other
    const int num_tables_;
    std::vector<UseTable> tables_;
    std::vector<std::vector<UsesInBatch>> counts_;  // of the batch linked latest, by table
    int64_t first_node_ = 0;
    Team team_;
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
        throw std::invalid_argument("num_nodes must fit the ids, got " +
                                    std::to_string(trace.num_nodes));
    for (int64_t slot = 0; slot < num_slots; ++slot)
        if (nodes[slot] >= trace.num_nodes)
            throw std::invalid_argument("slot " + std::to_string(slot) + " holds row " +
                                        std::to_string(nodes[slot]) + ", but there are only " +
                                        std::to_string(trace.num_nodes));
    for (int64_t i = 0; i < trace.num_batches; ++i)
        plan.misses[i] = trace.offsets[i + 1] - trace.offsets[i];
    const TracePositions positions(trace.offsets, trace.num_batches);
    AccessesInFiles<Id> accesses(trace, positions, longest_batch(shape), num_slots, nodes,
                                 frequencies, table_bytes, num_threads, plan);
    Planner(accesses, positions, num_slots, nodes, frequencies, plan.misses).run();
}

template void plan_belady_spilled<int32_t>(const SpilledTrace &, int64_t, int64_t *, int32_t *,
                                           int64_t, int, const SpilledPlan &);
template void plan_belady_spilled<int64_t>(const SpilledTrace &, int64_t, int64_t *, int32_t *,
                                           int64_t, int, const SpilledPlan &);

}  // namespace gnnstore
