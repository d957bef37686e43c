#include "kernels/belady_spilled.h"

#include <algorithm>
#include <limits>
#include <stdexcept>
#include <string>
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
          next_(parts_.add(4 * longest_batch)),
          slots_(parts_.add(4 * longest_batch)),
          positions_here_(parts_.add(4 * (longest_batch + 1))),
          entered_(parts_.add(4 * longest_batch)),
          // One piece, since each piece of the pool ends within a huge page.
          memory_(parts_.size()),
          num_tables_(longest_batch < least_shared_batch ? 1 : std::min(num_threads, max_tables)) {
        plan.change_offsets[0] = 0;
        plan.slots.reserve(4 * trace.offsets[trace.num_batches]);
        std::fill_n(carried_next(), num_slots, positions.end());
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
    const int32_t *take_next(int64_t batch) {
        link(batch);
        return part(next_);
    }

    bool add_uses(int64_t, UsesInBatch *) const { return false; }
    void finish_next() {
        for_tables([&](UseTable &table, int64_t) {
            table.finish(nodes_, num_slots_, carried_next());
        });
    }

    const int32_t *next(int64_t batch, int64_t following) {
        read_next(batch, following);
        return part(next_);
    }
    const Id *ids(int64_t batch) {
        read_ids(batch, batch + 1);
        return ids();
    }
    void *slots_bytes() const { return part(shared_); }

    int32_t *slots() const { return part(slots_); }
    int32_t *positions() const { return part(positions_here_); }
    int32_t *entered() const { return part(entered_); }

    void put(int64_t batch, int64_t num_entering) {
        write_slots(batch, slots());
        // One behind the other.
        std::copy_n(entered(), num_entering, positions() + num_entering);
        const int64_t num_bytes = 8 * num_entering, begin = plan_.change_offsets[batch];
        plan_.changes.write(positions(), num_bytes, 8 * begin);
        plan_.change_crcs[batch] = SpillFile::checksum(positions(), num_bytes, batch);
        plan_.change_offsets[batch + 1] = begin + num_entering;
    }

private:
    int32_t *part(int64_t begin) const { return memory_.data() + begin; }
    Id *ids() const { return reinterpret_cast<Id *>(part(ids_)); }
    int64_t size_of(int64_t batch) const {
        return trace_.offsets[batch + 1] - trace_.offsets[batch];
    }

    // Below, starting threads would take longer than what they do.
    static constexpr int64_t least_shared_batch = 1 << 15;
    // Each looks at all ids of a batch.
    static constexpr int max_tables = 4;

    // Each table serves a range of the round's nodes, so that they can be used at once: threads wait
    // for memory, which is what most of this takes.
    template <class Use>
    void for_tables(const Use &use) {
        run_workers(num_tables_, num_tables_, [&](TaskQueue &queue) {
            for (int64_t i; queue.take(i);) use(tables_[static_cast<size_t>(i)], i);
        });
    }

    void start_round(int64_t first) {
        first_node_ = first;
        const int64_t count = std::min(table_nodes_, trace_.num_nodes - first);
        tables_.clear();
        for (int64_t i = 0; i < num_tables_; ++i) {
            const int64_t begin = count * i / num_tables_, end = count * (i + 1) / num_tables_;
            tables_.emplace_back(part(shared_) + begin, first + begin, end - begin);
        }
        for_tables([&](UseTable &table, int64_t) { table.start(nodes_, frequencies_, num_slots_); });
        for (int64_t batch = 0; batch < trace_.num_batches; ++batch) {
            read_ids(batch, batch + 1);
            if (first == 0) check_ids(ids(), size_of(batch), trace_.num_nodes);
            int64_t num_repeated[max_tables] = {};
            for_tables([&](UseTable &table, int64_t i) {
                num_repeated[i] = table.count(batch, ids(), size_of(batch));
            });
            for (const int64_t num : num_repeated) plan_.misses[batch] -= num;
        }
        for_tables([](UseTable &table, int64_t) { table.turn_back(); });
    }

    // Completes the next uses of a batch by those of the nodes that this round is for.
    void link(int64_t batch) {
        read_ids(batch, batch - 1);
        if (first_node_ > 0) {
            read_next(batch, batch - 1);
        }
        for_tables([&](UseTable &table, int64_t) {
            table.link(ids(), size_of(batch), positions_.begin(batch), part(next_));
        });
        write_slots(batch, part(next_));
    }

    bool has(int64_t batch) const { return batch >= 0 && batch < trace_.num_batches; }

    // following: the batch that is read next.
    void read_ids(int64_t batch, int64_t following) {
        constexpr int64_t size = sizeof(Id);
        trace_.file.read(ids(), size * size_of(batch), trace_.begins[batch], trace_.crcs[batch],
                         batch);
        if (has(following))
            trace_.file.will_need(size * size_of(following), trace_.begins[following]);
    }
    void read_next(int64_t batch, int64_t following) {
        plan_.slots.read(part(next_), 4 * size_of(batch), 4 * trace_.offsets[batch],
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
    const int64_t carried_, shared_, ids_, next_, slots_, positions_here_, entered_;
    const PooledArray<int32_t> memory_;
    const int num_tables_;
    std::vector<UseTable> tables_;
    int64_t first_node_ = 0;
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
