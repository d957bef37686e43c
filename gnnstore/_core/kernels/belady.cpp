// Keeping a row from a batch to the next one that needs it takes a slot of the cache for the
// time between, and is worth one read. So a plan is a choice of intervals, at most num_slots of
// them at any time, and as many as can be. Going through the batches from the last to the first,
// and in each taking the nearest next uses first, it is best to take whatever still finds a slot.
// Going forward, as Belady's rule is mostly told, gives the same number, but rows would be written
// to the cache that lose their slot before they are needed.
//
// The backward pass decides for a whole batch by counts alone, and leaves of each decision where
// it cuts the batch: which slot it will be does not matter yet. A forward pass then hands slots on
// from access to access. Neither looks at rows, or at places all over the trace: next uses are
// found in groups of rows, and slots wait in lists by batch. With a table of all rows, and slots
// written to wherever they are read next, 64 batches of 135,000 rows took 1.3 to 1.7 times as
// long and 21 bytes an access; now they take 6.
#include "kernels/belady.h"

#include <algorithm>
#include <limits>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "kernels/free_places.h"
#include "kernels/next_uses.h"
#include "kernels/pooled_array.h"
#include "kernels/scan_uses.h"
#include "kernels/trace_positions.h"
#include "kernels/waiting_slots.h"

namespace gnnstore {
namespace {

// Added to what stands for "not used again" (see NextUses) where a row stays to the end.
constexpr int32_t stays = std::numeric_limits<int32_t>::min() / 2;

constexpr bool is_staying(int32_t use) { return use < -max_frequency; }

template <class Id>
class Planner {
public:
    Planner(const Trace<Id> &trace, int64_t num_slots, int64_t *nodes, int32_t *frequencies,
            int32_t *slots, int64_t *misses)
        : trace_(trace),
          offsets_(trace.offsets),
          num_batches_(trace.num_batches),
          num_slots_(num_slots),
          nodes_(nodes),
          frequencies_(frequencies),
          next_(slots),
          misses_(misses),
          positions_(trace.offsets, trace.num_batches),
          // One piece, since each piece of the pool ends within a huge page.
          memory_(memory_size()),
          scratch_(memory_.data()),
          carried_next_(scratch_ + num_slots + trace.num_ids + 3),
          next_uses_(trace, positions_, num_slots, nodes, frequencies, scratch_, misses),
          uses_(static_cast<size_t>(num_batches_) + 1, 0),
          free_until_(num_batches_ + 1),
          kept_from_(static_cast<size_t>(num_batches_) + 1, 0),
          cuts_(static_cast<size_t>(num_batches_)) {}

    CacheChanges run() {
        free_until_.put(num_batches_, num_slots_);
        for (int64_t batch = num_batches_ - 1; batch >= 0; --batch) {
            take_next_uses(batch);
            cuts_[static_cast<size_t>(batch)] =
                decide(batch, next_ + offsets_[batch], offsets_[batch + 1] - offsets_[batch]);
        }
        take_first_uses();
        carried_cut_ = decide(-1, carried_next_, num_slots_);
        keep_to_the_end();
        return hand_on_slots();
    }

private:
    // Of memory_, in values. In the order in which it is used, so that what is not needed by few
    // slots or batches is never touched.
    int64_t memory_size() const {
        const int64_t before = trace_.num_ids + 2 * num_slots_ + 4 + longest_batch(trace_);
        return before + before % 2 + waiting_size();
    }
    int64_t waiting_size() const {
        return 2 * WaitingSlots::num_entries(num_batches_, num_slots_);
    }

    // What is kept of a batch: next uses before `end`, and those before `partly_end` too of the
    // first accesses, up to position `partly` of the batch.
    struct Cut {
        int32_t end, partly_end;
        int32_t partly;
    };

    void take_next_uses(int64_t batch) {
        const int64_t begin = offsets_[batch];
        int32_t *const next = next_;
        int64_t *const uses = uses_.data();
        const auto end_of_trace = positions_.end();
        next_uses_.take(begin, offsets_[batch + 1], [&](int64_t k, int32_t use) {
            next[k] = use;
            ++uses[positions_.batch(use < 0 ? end_of_trace : use)];
        });
        // Accesses that are repeated in the batch have their next use there.
        uses[batch] = 0;
        misses_[batch] += offsets_[batch + 1] - begin;
    }

    // carried_next_[slot]: where the row that is in a slot before the first batch is used first.
    void take_first_uses() {
        for (int64_t slot = num_slots_ - 1; slot >= 0; --slot) {
            carried_next_[slot] = positions_.end();
            if (nodes_[slot] < 0) continue;
            const int32_t use = next_uses_.take_carried(nodes_[slot]);
            carried_next_[slot] = use;
            if (use >= 0) ++uses_[static_cast<size_t>(positions_.batch(use))];
        }
    }

    // Keeps the rows of a batch whose next uses are nearest, as far as slots are free until
    // then. Rows that are not used again wait.
    Cut decide(int64_t batch, const int32_t *next, int64_t size) {
        int32_t kept_end = positions_.end(), partly_end = kept_end;
        int64_t partly_left = 0;
        int64_t num_kept = 0;
        bool is_full = false;
        const auto keep = [&](int64_t use) {
            const int64_t wanted = std::exchange(uses_[static_cast<size_t>(use)], 0);
            if (is_full || wanted == 0) return;
            const int64_t taken = free_until_.take(use, wanted);
            num_kept += taken;
            kept_from_[static_cast<size_t>(use)] -= taken;
            misses_[use] -= taken;
            if (taken == wanted) return;
            is_full = true;
            kept_end = positions_.begin(use);
            partly_end = positions_.begin(use + 1);
            partly_left = taken;
        };
        // Few rows may be used in few of many batches.
        if (num_batches_ - batch > 4 * size + 64) {
            for (const int64_t use : next_batches(batch, next, size)) keep(use);
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
        const int64_t partly = behind_uses(next, size, kept_end, partly_end, partly_left);
        return {kept_end, partly_end, static_cast<int32_t>(partly)};
    }

    std::vector<int64_t> next_batches(int64_t batch, const int32_t *next, int64_t size) const {
        const int32_t begin = positions_.begin(batch + 1);
        std::vector<int64_t> batches;
        for (int64_t k = 0; k < size; ++k)
            if (next[k] >= begin) batches.push_back(positions_.batch(next[k]));
        std::sort(batches.begin(), batches.end());
        batches.erase(std::unique(batches.begin(), batches.end()), batches.end());
        return batches;
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

        FreePlaces free_from(num_batches_ + 1);  // from the last batch to the first
        int64_t first = num_batches_;
        for (; first > 0 && room[static_cast<size_t>(first)] > 0; --first) {
            const auto s = static_cast<size_t>(first);
            free_from.put(num_batches_ - first, room[s] - room[s - 1]);
        }
        const bool are_carried = first == 0 && room[0] > 0;
        if (are_carried) free_from.put(num_batches_, room[0]);

        // By frequency, and with equal ones in this order. Accesses count from num_slots.
        const auto for_candidates = [&](const auto &use) {
            for (int64_t batch = num_batches_ - 1; batch >= first; --batch)
                for_not_used_again(next_ + offsets_[batch], offsets_[batch + 1] - offsets_[batch],
                                   num_slots_ + offsets_[batch], use);
            if (are_carried) for_not_used_again(carried_next_, num_slots_, 0, use);
        };
        std::vector<uint32_t> ends(max_frequency + 1, 0);
        for_candidates([&](int64_t, int32_t frequency) { ++ends.data()[frequency]; });
        uint32_t end = 0;
        for (size_t frequency = ends.size(); frequency-- > 0;)
            end += std::exchange(ends[frequency], end);
        for_candidates([&](int64_t candidate, int32_t frequency) {
            scratch_[ends.data()[frequency]++] = static_cast<int32_t>(candidate);
        });
        uint32_t i = 0;
        int64_t left = room.back();
        for (size_t frequency = ends.size(); frequency-- > 0 && left > 0;)
            while (i < ends[frequency]) {
                // Those of one batch, of which the first stay.
                const int64_t batch = batch_of_candidate(static_cast<uint32_t>(scratch_[i]));
                const int64_t begin = batch < 0 ? 0 : num_slots_ + offsets_[batch];
                const int64_t end_here = num_slots_ + (batch < 0 ? 0 : offsets_[batch + 1]);
                const uint32_t run = i;
                while (i < ends[frequency] && static_cast<uint32_t>(scratch_[i]) >= begin &&
                       static_cast<uint32_t>(scratch_[i]) < end_here)
                    ++i;
                const int64_t taken = free_from.take(num_batches_ - 1 - batch, i - run);
                left -= taken;
                int32_t *const next = batch < 0 ? carried_next_ : next_ - num_slots_;
                for (int64_t j = run; j < run + taken; ++j)
                    next[static_cast<uint32_t>(scratch_[j])] += stays;
            }
    }

    int64_t batch_of_candidate(int64_t candidate) const {
        if (candidate < num_slots_) return -1;
        return std::upper_bound(offsets_, offsets_ + num_batches_, candidate - num_slots_) -
               offsets_ - 1;
    }

    // Goes through the batches in their order: who keeps its row hands its slot to the next use.
    CacheChanges hand_on_slots() {
        int32_t *const slots_here = carried_next_ + num_slots_;
        WaitingSlots waiting(num_batches_, num_slots_,
                             reinterpret_cast<WaitingSlots::Entry *>(memory_.data() +
                                                                     memory_size() -
                                                                     waiting_size()));
        start_slots(waiting);

        // A row that enters is read from its slot later, or stays to the end: there are at most
        // half as many of them as accesses and slots.
        int32_t *const positions = scratch_;
        int32_t *const entered_slots = positions + (num_slots_ + trace_.num_ids) / 2 + 1;
        int64_t num_changes = 0;
        CacheChanges changes;
        changes.offsets.reserve(static_cast<size_t>(num_batches_) + 1);
        changes.offsets.push_back(0);
        for (int64_t batch = 0; batch < num_batches_; ++batch) {
            const int64_t begin = offsets_[batch], size = offsets_[batch + 1] - begin;
            std::fill_n(slots_here, size, -1);
            const int32_t first = positions_.begin(batch);
            waiting.take_all(batch, [&](int32_t position, int32_t slot) {
                slots_here[position - first] = slot;
            });
            const int64_t num_entering =
                sort_out(batch, waiting, slots_here, positions + num_changes);
            // Only now: a slot that this batch still reads is written after it was assembled.
            if (num_entering > num_slots_ - free_slots_)
                throw std::logic_error("the plan keeps more rows than there are slots");
            for (int64_t i = num_changes; i < num_changes + num_entering; ++i) {
                const int64_t k = begin + positions[i];
                entered_slots[i] = carried_next_[free_slots_++];
                hand_on(waiting, trace_.ids[k], next_[k], entered_slots[i]);
            }
            num_changes += num_entering;
            changes.offsets.push_back(num_changes);
            std::copy_n(slots_here, size, next_ + begin);
        }
        changes.positions.assign(positions, positions + num_changes);
        changes.slots.assign(entered_slots, entered_slots + num_changes);
        return changes;
    }

    // Hands on the slots of a batch's hits, frees those of rows that are not kept, and lists the
    // rows that enter; returns how many.
    int64_t sort_out(int64_t batch, WaitingSlots &waiting, int32_t *slots_here,
                     int32_t *entering) {
        const Cut cut = cuts_[static_cast<size_t>(batch)];
        const auto size = static_cast<int32_t>(offsets_[batch + 1] - offsets_[batch]);
        int64_t num_entering = 0;
        for (int32_t begin = 0; begin < size;) {
            const bool is_partly = begin < cut.partly;
            const int32_t end = std::min({begin + scan_block, size, is_partly ? cut.partly : size});
            sort_out_block(batch, begin, end, is_partly ? cut.partly_end : cut.end, waiting,
                           slots_here, entering, num_entering);
            begin = end;
        }
        return num_entering;
    }

    // Which of these an access is cannot be predicted, so each is written to each list, and
    // counts only where it belongs.
    void sort_out_block(int64_t batch, int32_t begin, int32_t end, int32_t kept_end,
                        WaitingSlots &waiting, int32_t *slots_here, int32_t *entering,
                        int64_t &num_entering) {
        const int32_t *const next = next_ + offsets_[batch];
        const int32_t here = positions_.begin(batch), later = positions_.begin(batch + 1);
        int32_t handed_on[scan_block], staying[scan_block];
        int32_t *const free_slots = carried_next_ - 1;
        int64_t free = free_slots_, entered = num_entering, num_handed_on = 0, num_staying = 0;
        for (int32_t i = begin; i < end; ++i) {
            const int32_t use = next[i], slot = slots_here[i];
            if (static_cast<uint32_t>(use) < static_cast<uint32_t>(later)) [[unlikely]] {
                slots_here[use - here] = slot;  // repeated in this batch: the access there goes on
                continue;
            }
            const bool is_hit = slot >= 0, is_used = (use >= later) & (use < kept_end);
            const bool stays_here = is_staying(use), is_kept = is_used | stays_here;
            free_slots[free] = slot;
            entering[entered] = i;
            handed_on[num_handed_on] = i;
            staying[num_staying] = i;
            free -= is_hit & !is_kept;
            entered += !is_hit & is_kept;
            num_handed_on += is_hit & is_used;
            num_staying += is_hit & stays_here;
        }
        for (int64_t j = 0; j < num_handed_on; ++j) {
            const int32_t use = next[handed_on[j]];
            waiting.put(positions_.batch(use), use, slots_here[handed_on[j]]);
        }
        for (int64_t j = 0; j < num_staying; ++j) {
            const int32_t i = staying[j];
            stay(trace_.ids[offsets_[batch] + i], next[i], slots_here[i]);
        }
        free_slots_ = free;
        num_entering = entered;
    }

    // The slots of rows that are carried over and stay; the others are free, the first on top.
    // The stack of free slots grows downwards, over next uses that were looked at.
    void start_slots(WaitingSlots &waiting) {
        free_slots_ = num_slots_;
        for (int64_t slot = num_slots_ - 1; slot >= 0; --slot) {
            const int64_t node = std::exchange(nodes_[slot], -1);
            frequencies_[slot] = 0;
            const int32_t use = carried_next_[slot];
            const Cut &cut = carried_cut_;
            const bool is_used = use >= 0 && use < (slot < cut.partly ? cut.partly_end : cut.end);
            if (node >= 0 && (is_used || is_staying(use)))
                hand_on(waiting, node, use, static_cast<int32_t>(slot));
            else
                carried_next_[--free_slots_] = static_cast<int32_t>(slot);
        }
    }

    void hand_on(WaitingSlots &waiting, int64_t node, int32_t use, int32_t slot) {
        if (is_staying(use))
            stay(node, use, slot);
        else
            waiting.put(positions_.batch(use), use, slot);
    }

    void stay(int64_t node, int32_t use, int32_t slot) {
        nodes_[slot] = node;
        frequencies_[slot] = stays - use;
    }

    const Trace<Id> trace_;
    const int64_t *const offsets_;
    const int64_t num_batches_;
    const int64_t num_slots_;
    int64_t *const nodes_;
    int32_t *const frequencies_;
    int32_t *const next_;  // [num_ids]; and the slots that are the result, batch after batch
    int64_t *const misses_;
    const TracePositions positions_;
    const PooledArray<int32_t> memory_;
    int32_t *const scratch_;       // [num_slots + num_ids + 2]
    int32_t *const carried_next_;  // [num_slots], behind one that is written and not counted
    NextUses<Id> next_uses_;
    std::vector<int64_t> uses_;          // of the rows of one batch, in each later batch
    FreePlaces free_until_;              // batches that slots are free until
    std::vector<int64_t> kept_from_;     // slots in use after each batch, less those before it
    int64_t num_carried_ = 0;
    int64_t free_slots_ = 0;             // where in carried_next_ the stack of them ends
    std::vector<Cut> cuts_;
    Cut carried_cut_{};
};

}  // namespace

template <class Id>
CacheChanges plan_belady(const Trace<Id> &trace, int64_t num_slots, int64_t *nodes,
                         int32_t *frequencies, int32_t *slots, int64_t *misses) {
    check_offsets(trace);
    check_num_slots(num_slots);
    for (int64_t slot = 0; slot < num_slots; ++slot)
        if (nodes[slot] >= 0 && frequencies[slot] < 1)
            throw std::invalid_argument("the row in slot " + std::to_string(slot) +
                                        " must have a frequency of at least 1, got " +
                                        std::to_string(frequencies[slot]));
    std::fill_n(misses, trace.num_batches, 0);
    return Planner<Id>(trace, num_slots, nodes, frequencies, slots, misses).run();
}

template CacheChanges plan_belady(const Trace<int32_t> &, int64_t, int64_t *, int32_t *, int32_t *,
                                  int64_t *);
template CacheChanges plan_belady(const Trace<int64_t> &, int64_t, int64_t *, int32_t *, int32_t *,
                                  int64_t *);

}  // namespace gnnstore
