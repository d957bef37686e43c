// Keeping a row from a batch to the next one that needs it takes a slot of the cache for the
// time between, and is worth one read. So a plan is a choice of intervals, at most num_slots of
// them at any time, and as many as can be. Going through the batches from the last to the first,
// and in each taking the nearest next uses first, it is best to take whatever still finds a slot.
// Going forward, as Belady's rule is mostly told, gives the same number, but rows would be written
// to the cache that lose their slot before they are needed.
//
// The backward pass meets each access with a single look at a table of rows, and decides for a
// whole batch by counts alone: which slot it will be does not matter yet. A forward pass then
// hands slots on from access to access. Both wait for memory: on 163 batches of 135,000 rows they
// take 10 and 9 of the 24 ns an access, where a bare loop over such a table takes 7.
#include "kernels/belady.h"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>

#include "kernels/free_places.h"
#include "kernels/pooled_array.h"
#include "kernels/row_state.h"
#include "kernels/row_table.h"

namespace gnnstore {
namespace {

// How many iterations ahead the loops prefetch.
constexpr int64_t table_distance = 32;
constexpr int64_t slots_distance = 32;

constexpr int32_t not_kept = -1;

template <class Id, class Table>
class Planner {
public:
    Planner(const Trace<Id> &trace, int64_t num_slots, int64_t *nodes, int32_t *frequencies,
            int32_t *slots, int64_t *misses, Table &table)
        : trace_(trace),
          offsets_(trace.offsets),
          num_batches_(trace.num_batches),
          num_slots_(num_slots),
          nodes_(nodes),
          frequencies_(frequencies),
          slots_(slots),
          misses_(misses),
          table_(table),
          longest_batch_(longest_batch(trace)),
          states_(trace.num_batches, longest_batch_),
          never_(static_cast<int32_t>(trace.num_ids)),
          to_the_end_(never_ + 1),
          next_(trace.num_ids),
          carried_next_(num_slots),
          uses_(static_cast<size_t>(num_batches_) + 1, 0),
          free_until_(num_batches_ + 1),
          kept_from_(static_cast<size_t>(num_batches_) + 1, 0),
          free_slots_(num_slots + 1),
          entering_(longest_batch_ + 1),
          rare_(longest_batch_ + 1) {}

    CacheChanges run() {
        free_until_.put(num_batches_, num_slots_);
        for (int64_t batch = num_batches_ - 1; batch >= 0; --batch) {
            find_next_uses(batch);
            decide(batch, &next_[offsets_[batch]], offsets_[batch + 1] - offsets_[batch]);
        }
        find_first_uses();
        decide(-1, carried_next_.data(), num_slots_);
        keep_to_the_end();
        return hand_on_slots();
    }

private:
    // next_[k] for the accesses of a batch: where its row is used next; an earlier access to
    // the same row in the same batch points to the batch's last one, which stands for it.
    void find_next_uses(int64_t batch) {
        const int64_t begin = offsets_[batch], end = offsets_[batch + 1];
        // Copies, which stores to the table cannot change: they stay in registers.
        const RowState states = states_;
        const Id *const ids = trace_.ids;
        const int64_t *const offsets = offsets_;
        int32_t *const next = next_.data();
        int64_t *const uses = uses_.data();
        int64_t repeated = 0;
        for (int64_t k = end - 1; k >= begin; --k) {
            table_.prefetch(ids[std::max<int64_t>(k - table_distance, 0)]);
            uint64_t &state = table_.at(ids[k]);
            const int64_t next_batch = states.batch(state);
            next[k] = static_cast<int32_t>(offsets[next_batch] + states.position(state));
            if (next_batch == batch) {
                ++repeated;
                continue;
            }
            ++uses[next_batch];
            state = states.pack(states.frequency(state) + 1, batch, k - begin);
        }
        misses_[batch] += end - begin - repeated;
    }

    // carried_next_[slot]: where the row that is in a slot before the first batch is used first.
    void find_first_uses() {
        for (int64_t slot = 0; slot < num_slots_; ++slot) {
            carried_next_[slot] = not_kept;
            if (nodes_[slot] < 0) continue;
            const int64_t ahead = nodes_[std::min(slot + table_distance, num_slots_ - 1)];
            if (ahead >= 0) table_.prefetch(ahead);
            uint64_t &state = table_.at(nodes_[slot]);
            const int64_t next_batch = states_.batch(state);
            // A row that was counted, but is nowhere in the trace, was met in another slot.
            if (state != 0 && next_batch == num_batches_)
                throw std::invalid_argument("nodes must be distinct, but " +
                                            std::to_string(nodes_[slot]) +
                                            " stands there twice, at last in slot " +
                                            std::to_string(slot));
            carried_next_[slot] =
                static_cast<int32_t>(offsets_[next_batch] + states_.position(state));
            ++uses_[static_cast<size_t>(next_batch)];
            state = states_.pack(states_.frequency(state) + frequencies_[slot], num_batches_, 0);
        }
    }

    // Keeps the rows of a batch whose next uses are nearest, as far as slots are free until
    // then; the others' next[k] becomes not_kept. Rows that are not used again wait.
    void decide(int64_t batch, int32_t *next, int64_t size) {
        const int64_t begin = batch < 0 ? 0 : offsets_[batch + 1];
        int64_t kept_end = begin, partly_end = begin;  // next uses before kept_end are kept,
        int64_t partly_left = 0, num_kept = 0;         // of those up to partly_end, a few
        bool is_full = false;
        const auto keep = [&](int64_t use) {
            const int64_t wanted = std::exchange(uses_[static_cast<size_t>(use)], 0);
            if (is_full || wanted == 0) return;
            const int64_t taken = free_until_.take(use, wanted);
            num_kept += taken;
            kept_from_[static_cast<size_t>(use)] -= taken;
            misses_[use] -= taken;
            if (taken == wanted) {
                kept_end = offsets_[use + 1];
            } else {
                is_full = true;
                partly_end = offsets_[use + 1];
                partly_left = taken;
            }
        };
        // Few rows may be used in few of many batches.
        if (num_batches_ - batch > 4 * size + 64) {
            for (const int64_t use : next_batches(next, size, begin)) keep(use);
        } else {
            for (int64_t use = batch + 1; use < num_batches_; ++use) keep(use);
        }
        uses_.back() = 0;
        if (batch >= 0) {
            free_until_.put(batch, num_kept);
            kept_from_[static_cast<size_t>(batch)] += num_kept;
        } else {
            num_carried_ = num_kept;
        }
        if (is_full) drop(next, size, kept_end, partly_end, partly_left);
    }

    std::vector<int64_t> next_batches(const int32_t *next, int64_t size, int64_t begin) const {
        std::vector<int64_t> batches;
        for (int64_t k = 0; k < size; ++k)
            if (next[k] >= begin && next[k] < never_)
                batches.push_back(
                    std::upper_bound(offsets_, offsets_ + num_batches_ + 1, next[k]) - offsets_ -
                    1);
        std::sort(batches.begin(), batches.end());
        batches.erase(std::unique(batches.begin(), batches.end()), batches.end());
        return batches;
    }

    void drop(int32_t *next, int64_t size, int64_t kept_end, int64_t partly_end,
              int64_t partly_left) const {
        for (int64_t k = 0; k < size && partly_left > 0; ++k)
            if (next[k] >= kept_end && next[k] < partly_end) {
                --partly_left;
                next[k] = -2 - next[k];  // marked until the others are dropped
            }
        const auto end = static_cast<int32_t>(kept_end);
        const int32_t never = never_;
        for (int64_t k = 0; k < size; ++k) {
            const int32_t use = next[k];
            const int32_t kept = use < end || use == never ? use : not_kept;
            next[k] = use < not_kept ? -2 - use : kept;
        }
    }

    // Fills the slots that are free up to the end with rows whose next use is unknown: those of
    // the highest frequency, and among equals those used last.
    void keep_to_the_end() {
        // room[s]: slots that are free from batch s - 1 (0: from before the first) to the end.
        const auto size = static_cast<size_t>(num_batches_) + 1;
        std::vector<int64_t> room(size);
        int64_t in_use = num_carried_;
        for (size_t s = 0; s < size; ++s) {
            if (s > 0) in_use += kept_from_[s - 1];
            room[s] = num_slots_ - in_use;
        }
        for (size_t s = size - 1; s > 0; --s) room[s - 1] = std::min(room[s - 1], room[s]);

        std::vector<Candidate> candidates;
        FreePlaces free_from(num_batches_ + 1);  // from the last batch to the first
        int64_t batch = num_batches_ - 1;
        for (; batch >= 0 && room[static_cast<size_t>(batch) + 1] > 0; --batch) {
            const auto s = static_cast<size_t>(batch) + 1;
            free_from.put(num_batches_ - 1 - batch, room[s] - room[s - 1]);
            collect(batch, &next_[offsets_[batch]], offsets_[batch + 1] - offsets_[batch],
                    trace_.ids + offsets_[batch], candidates);
        }
        if (batch < 0 && room[0] > 0) {
            free_from.put(num_batches_, room[0]);
            collect(-1, carried_next_.data(), num_slots_, nodes_, candidates);
        }
        for (const size_t place : by_frequency(candidates)) {
            const Candidate &candidate = candidates[place];
            if (free_from.take(num_batches_ - 1 - candidate.batch, 1) == 0) continue;
            const bool is_carried = candidate.batch < 0;
            int32_t *next = is_carried ? carried_next_.data() : &next_[offsets_[candidate.batch]];
            next[candidate.position] = to_the_end_;
        }
    }

    struct Candidate {
        int32_t batch;
        int32_t position;
        int32_t frequency;
    };

    template <class Row>
    void collect(int64_t batch, const int32_t *next, int64_t size, const Row *rows,
                 std::vector<Candidate> &candidates) {
        const size_t first = candidates.size();
        for (int64_t k = 0; k < size; ++k)
            if (next[k] == never_)
                candidates.push_back({static_cast<int32_t>(batch), static_cast<int32_t>(k), 0});
        for (size_t i = first; i < candidates.size(); ++i) {
            const size_t ahead = std::min(i + table_distance, candidates.size() - 1);
            table_.prefetch(rows[candidates[ahead].position]);
            candidates[i].frequency = states_.frequency(table_.at(rows[candidates[i].position]));
        }
    }

    // The order of candidates, highest frequency first; equals stay in their order.
    static std::vector<size_t> by_frequency(const std::vector<Candidate> &candidates) {
        std::vector<size_t> places(max_frequency + 1, 0);
        for (const Candidate &c : candidates) ++places[static_cast<size_t>(c.frequency)];
        size_t place = 0;
        for (size_t frequency = places.size(); frequency-- > 0;)
            place += std::exchange(places[frequency], place);
        std::vector<size_t> order(candidates.size());
        for (size_t i = 0; i < candidates.size(); ++i)
            order[places[static_cast<size_t>(candidates[i].frequency)]++] = i;
        return order;
    }

    // Goes through the batches in their order: who keeps its row hands its slot to the next use.
    CacheChanges hand_on_slots() {
        CacheChanges changes;
        changes.offsets.reserve(static_cast<size_t>(num_batches_) + 1);
        changes.offsets.push_back(0);
        std::fill_n(slots_, trace_.num_ids, -1);
        start_slots();
        for (int64_t batch = 0; batch < num_batches_; ++batch) {
            sort_out(batch);
            // Only now: a slot that this batch still reads is written after it was assembled.
            for (int64_t i = 0; i < num_entering_; ++i) {
                const int32_t k = entering_[i];
                if (num_free_ == 0)
                    throw std::logic_error("the plan keeps more rows than there are slots");
                const int32_t slot = free_slots_[--num_free_];
                changes.positions.push_back(static_cast<int32_t>(k - offsets_[batch]));
                changes.slots.push_back(slot);
                hand_on(trace_.ids[k], next_[k], slot);
            }
            changes.offsets.push_back(static_cast<int64_t>(changes.positions.size()));
        }
        for (int64_t slot = 0; slot < num_slots_; ++slot) {
            const int64_t ahead = nodes_[std::min(slot + table_distance, num_slots_ - 1)];
            if (ahead >= 0) table_.prefetch(ahead);
            frequencies_[slot] = nodes_[slot] < 0 ? 0 : states_.frequency(table_.at(nodes_[slot]));
        }
        return changes;
    }

    // Hands on the slots of a batch's hits, frees those of rows that are not kept, and lists the
    // rows that enter. Which of these an access is cannot be predicted, so each is written to
    // each list, and counts only where it belongs: a tenth faster than branches.
    void sort_out(int64_t batch) {
        const int64_t begin = offsets_[batch], end = offsets_[batch + 1];
        const int32_t never = never_;
        const auto last = static_cast<uint32_t>(std::max(never - 1, 0));
        const int32_t *const next = next_.data();
        int32_t *const slots = slots_;
        int32_t *const free_slots = free_slots_.data();
        int32_t *const entering = entering_.data();
        int32_t *const rare = rare_.data();
        int64_t num_free = num_free_, num_entering = 0, num_rare = 0;
        for (int64_t k = begin; k < end; ++k) {
            const int32_t ahead = next[std::min<int64_t>(k + slots_distance, last)];
            __builtin_prefetch(&slots[std::min(static_cast<uint32_t>(ahead), last)], 1);
            const int32_t use = next[k], slot = slots[k];
            const bool is_hit = slot >= 0, is_kept = use >= end && use != never;
            const bool is_used = use >= end && use < never;
            slots[is_hit && is_used ? use : k] = slot;
            free_slots[num_free] = slot;
            num_free += is_hit && !is_kept;
            entering[num_entering] = static_cast<int32_t>(k);
            num_entering += !is_hit && is_kept;
            // Repeated in this batch, or a hit that stays to the end.
            rare[num_rare] = static_cast<int32_t>(k);
            num_rare += (use >= 0 && use < end) || (is_hit && use > never);
        }
        num_free_ = num_free;
        num_entering_ = num_entering;
        for (int64_t i = 0; i < num_rare; ++i) {
            const int32_t k = rare[i];
            if (next[k] < end)
                slots[k] = slots[next[k]];
            else
                hand_on(trace_.ids[k], to_the_end_, slots[k]);
        }
    }

    // The slots of rows that are carried over and stay; the others are free, the first on top.
    void start_slots() {
        for (int64_t slot = num_slots_ - 1; slot >= 0; --slot) {
            const int64_t node = std::exchange(nodes_[slot], -1);
            const int32_t use = carried_next_[slot];
            if (use >= 0 && use != never_)
                hand_on(node, use, static_cast<int32_t>(slot));
            else
                free_slots_[num_free_++] = static_cast<int32_t>(slot);
        }
    }

    void hand_on(int64_t node, int32_t use, int32_t slot) {
        if (use != to_the_end_)
            slots_[use] = slot;
        else
            nodes_[slot] = node;
    }

    const Trace<Id> trace_;
    const int64_t *const offsets_;
    const int64_t num_batches_;
    const int64_t num_slots_;
    int64_t *const nodes_;
    int32_t *const frequencies_;
    int32_t *const slots_;
    int64_t *const misses_;
    Table &table_;
    const int64_t longest_batch_;
    const RowState states_;

    // What next_ holds where it is no position in the trace.
    const int32_t never_;
    const int32_t to_the_end_;

    PooledArray<int32_t> next_;          // [num_ids]
    PooledArray<int32_t> carried_next_;  // [num_slots]
    std::vector<int64_t> uses_;          // of the rows of one batch, in each later batch
    FreePlaces free_until_;              // batches that slots are free until
    std::vector<int64_t> kept_from_;     // slots in use after each batch, less those before it
    int64_t num_carried_ = 0;
    PooledArray<int32_t> free_slots_;    // a stack; as each list, with room for one that is
    PooledArray<int32_t> entering_;      // written and not counted
    PooledArray<int32_t> rare_;
    int64_t num_free_ = 0;
    int64_t num_entering_ = 0;
};

}  // namespace

template <class Id>
CacheChanges plan_belady(const Trace<Id> &trace, int64_t num_slots, int64_t *nodes,
                         int32_t *frequencies, int32_t *slots, int64_t *misses) {
    check_offsets(trace);
    if (num_slots > max_trace_ids)
        throw std::invalid_argument("a cache holds at most " + std::to_string(max_trace_ids) +
                                    " rows, got " + std::to_string(num_slots));
    int64_t largest = largest_id(trace.ids, trace.num_ids);
    for (int64_t slot = 0; slot < num_slots; ++slot) {
        largest = std::max(largest, nodes[slot]);
        if (nodes[slot] >= 0 && frequencies[slot] < 1)
            throw std::invalid_argument("the row in slot " + std::to_string(slot) +
                                        " must have a frequency of at least 1, got " +
                                        std::to_string(frequencies[slot]));
    }
    std::fill_n(misses, trace.num_batches, 0);
    return with_row_table<uint64_t>(largest, trace.num_ids + num_slots, [&](auto &table) {
        using Table = std::remove_reference_t<decltype(table)>;
        return Planner<Id, Table>(trace, num_slots, nodes, frequencies, slots, misses, table)
            .run();
    });
}

template CacheChanges plan_belady(const Trace<int32_t> &, int64_t, int64_t *, int32_t *, int32_t *,
                                  int64_t *);
template CacheChanges plan_belady(const Trace<int64_t> &, int64_t, int64_t *, int32_t *, int32_t *,
                                  int64_t *);

}  // namespace gnnstore
