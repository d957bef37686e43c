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
// found beforehand, and slots wait in lists by batch. So it does not matter either where next uses
// and slots lie between the passes, in memory or in files: each is looked at a batch at a time.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "kernels/base/errors.h"
#include "kernels/planning/belady.h"
#include "kernels/planning/free_places.h"
#include "kernels/planning/staying_rows.h"
#include "kernels/planning/waiting_slots.h"
#include "kernels/traces/access_lists.h"
#include "kernels/traces/scan_uses.h"
#include "kernels/traces/trace_positions.h"

namespace gnnstore {

// Memory of a planner that goes with slots, in turn for what is counted at the end of the backward
// pass and for what waits in the forward one.
inline int64_t planner_slots_bytes(int64_t num_batches, int64_t num_slots) {
    return std::max(WaitingSlots::num_entries(num_batches, num_slots) *
                        static_cast<int64_t>(sizeof(WaitingSlots::Entry)),
                    StayingRows::num_counts(num_slots) *
                        static_cast<int64_t>(sizeof(StayingRows::Count)));
}

// Room for the plan of a batch, values [its rows], and one more of positions.
struct PlannedRows {
    int32_t *slots;      // that it reads from, -1: none
    int32_t *positions;  // of the rows that enter after it
    int32_t *entered;    // the slots that those are written to
};

// Puts the slots that have waited for a batch where its rows stand.
struct BeginBatch {
    const WaitingSlots &waiting;
    WaitingSlots::Chain chain;
    int32_t first_position;
    int64_t num_rows;
    bool needs_ids;

    void operator()(int32_t *slots) const {
        std::memset(slots, 0xFF, static_cast<size_t>(num_rows) * sizeof *slots);  // -1
        waiting.put_slots(chain, first_position, slots);
    }
};

// Plans a cache. Accesses is what is known of the trace, and where it lies:
//
//   Id, offsets() and num_batches(): of the trace
//   carried_next(): int32_t [num_slots], behind one that is written and not counted: where the
//       rows that are in slots before the first batch are used first; a negative frequency where
//       they are not (see NextUses). After the backward pass.
//   take_next(batch): the next uses of a batch, from the last batch to the first.
//   add_uses(batch, uses): adds their counts by batch (see TracePositions), if it has them.
//   finish_next(): fills carried_next.
//   next(batch, following): the next uses again, in any order of batches; `following` is asked for
//       after them.
//   slots_bytes(): memory of planner_slots_bytes, after the backward pass.
//   open(batch, begin): the next uses a last time, from the first batch to the last, each closed by
//       put. begin(i) returns the BeginBatch of this one, or of the one behind it, which another
//       thread may call while this one is planned.
//   ids(batch): of the batch that is open, if its BeginBatch needs them.
//   planned(): of the batch that is open, to be filled for put(batch, number that enter).
//   finish(): after the last batch.
//   stop(): in place of it after an error; waits for tasks whose memory is about to be freed.
template <class Accesses>
class Planner {
public:
    // misses [num_batches]: of an empty cache; for nodes and frequencies see plan_belady.
    Planner(Accesses &accesses, const TracePositions &positions, int64_t num_slots, int64_t *nodes,
            int32_t *frequencies, int64_t *misses)
        : accesses_(accesses),
          offsets_(accesses.offsets()),
          num_batches_(accesses.num_batches()),
          num_slots_(num_slots),
          nodes_(nodes),
          frequencies_(frequencies),
          misses_(misses),
          positions_(positions),
          carried_next_(accesses.carried_next()),
          uses_(static_cast<size_t>(num_batches_) + 1),
          free_until_(num_batches_ + 1),
          kept_from_(static_cast<size_t>(num_batches_) + 1, 0),
          cuts_(static_cast<size_t>(num_batches_)) {}

    // If it fails in the forward pass, the cache counts as empty.
    void run() {
        free_until_.put(num_batches_, num_slots_);
        for (int64_t batch = num_batches_ - 1; batch >= 0; --batch) {
            const int32_t *const next = accesses_.take_next(batch);
            if (!accesses_.add_uses(batch, uses_.data()))
                positions_.count(next, size_of(batch), uses_.data());
            // Accesses that are repeated in the batch have their next use there.
            uses_[static_cast<size_t>(batch)] = {};
            cuts_[static_cast<size_t>(batch)] = decide(batch, next, size_of(batch));
        }
        accesses_.finish_next();
        positions_.count(carried_next_, num_slots_, uses_.data());
        carried_cut_ = decide(-1, carried_next_, num_slots_);
        keep_to_the_end();
        WaitingSlots waiting(num_batches_, num_slots_,
                             static_cast<WaitingSlots::Entry *>(accesses_.slots_bytes()));
        try {
            hand_on_slots(waiting);
        } catch (...) {
            accesses_.stop();
            std::fill_n(nodes_, num_slots_, -1);
            std::fill_n(frequencies_, num_slots_, 0);
            throw;
        }
    }

private:
    using Id = typename Accesses::Id;

    // The accesses of a batch whose rows are kept: those next used before `end`, and of the first
    // ones, up to position `partly` of the batch, also those next used before `partly_end`. Rows
    // that stay to the end, whose next uses are unknown, are cut in the same way, by their
    // frequencies as negative numbers.
    struct Cut {
        int32_t end, partly_end;
        int32_t partly;
    };

    int64_t size_of(int64_t batch) const { return offsets_[batch + 1] - offsets_[batch]; }

    // Keeps the rows of a batch whose next uses are nearest, as far as slots are free until
    // then. Rows that are not used again wait.
    Cut decide(int64_t batch, const int32_t *next, int64_t size) {
        int32_t kept_end = positions_.end(), partly_end = kept_end;
        int64_t partly_left = 0;
        int64_t num_kept = 0;
        bool is_full = false;
        const auto keep = [&](int64_t use) {
            const int64_t wanted = std::exchange(uses_[static_cast<size_t>(use)], {}).all();
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
        uses_.back() = {};
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
        // Behind the trace: slots that hold no row.
        const int32_t begin = positions_.begin(batch + 1), end = positions_.end();
        std::vector<int64_t> batches;
        for (int64_t k = 0; k < size; ++k)
            if (next[k] >= begin && next[k] < end) batches.push_back(positions_.batch(next[k]));
        std::sort(batches.begin(), batches.end());
        batches.erase(std::unique(batches.begin(), batches.end()), batches.end());
        return batches;
    }

    // Fills the slots that are free up to the end with rows whose next use is unknown.
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

        StayingRows staying(num_batches_, num_slots_,
                            static_cast<StayingRows::Count *>(accesses_.slots_bytes()),
                            std::move(free_from));
        for (int64_t batch = num_batches_ - 1; batch >= first; --batch)
            staying.count(batch, accesses_.next(batch, batch - 1), size_of(batch));
        if (are_carried) staying.count(-1, carried_next_, num_slots_);
        thresholds_ = staying.thresholds();
    }

    // `size` next uses of the batch, or of rows in slots for num_batches.
    Cut stay_cut(int64_t batch, const int32_t *next, int64_t size) const {
        const StayingRows::Threshold threshold = thresholds_[static_cast<size_t>(batch)];
        const int32_t end = -threshold.frequency;
        const int64_t partly = behind_uses(next, size, end, end + 1, threshold.num_rows);
        return {end, end + 1, static_cast<int32_t>(partly)};
    }

    // Only rows that stay are asked who they are.
    bool has_staying(int64_t batch) const {
        return thresholds_[static_cast<size_t>(batch)].num_rows > 0;
    }

    // Goes through the batches in their order: who keeps its row hands its slot to the next use.
    void hand_on_slots(WaitingSlots &waiting) {
        start_slots(waiting);
        // What waits when even and when odd batches begin.
        WaitingSlots::Chain chains[2];
        const auto begin = [&](int64_t batch) {
            chains[batch % 2] = waiting.take(batch);
            return BeginBatch{waiting, chains[batch % 2], positions_.begin(batch),
                              size_of(batch), has_staying(batch)};
        };
        for (int64_t batch = 0; batch < num_batches_; ++batch) {
            const int32_t *const next = accesses_.open(batch, begin);
            const Id *const ids = has_staying(batch) ? accesses_.ids(batch) : nullptr;
            const auto [slots_here, entering, entered] = accesses_.planned();
            waiting.forget(chains[batch % 2]);
            // The batch before has put more.
            const WaitingSlots::Chain latest = waiting.take(batch);
            waiting.put_slots(latest, positions_.begin(batch), slots_here);
            waiting.forget(latest);
            const int64_t num_entering = sort_out(batch, ids, next, waiting, slots_here, entering);
            // Only now: a slot that this batch still reads is written after it was assembled.
            if (num_entering > num_slots_ - free_slots_)
                throw std::logic_error("the plan keeps more rows than there are slots");
            for (int64_t i = 0; i < num_entering; ++i) {
                const int32_t use = next[entering[i]], slot = carried_next_[free_slots_++];
                entered[i] = slot;
                if (use < 0)
                    stay(ids[entering[i]], use, slot);
                else
                    waiting.put(positions_.batch(use), use, slot);
            }
            accesses_.put(batch, num_entering);
        }
        accesses_.finish();
    }

    // Hands on the slots of a batch's hits, frees the slots of rows that are not kept, and lists
    // the rows that enter; returns their number.
    int64_t sort_out(int64_t batch, const Id *ids, const int32_t *next, WaitingSlots &waiting,
                     int32_t *slots_here, int32_t *entering) {
        const Cut cut = cuts_[static_cast<size_t>(batch)];
        const auto size = static_cast<int32_t>(size_of(batch));
        const Cut stay_cut = this->stay_cut(batch, next, size);
        int64_t num_entering = 0;
        const int32_t here = positions_.begin(batch), later = positions_.begin(batch + 1);
        for (int32_t begin = 0; begin < size;) {
            const bool is_partly = begin < cut.partly, stays_partly = begin < stay_cut.partly;
            const int32_t end = std::min({begin + list_block, size, is_partly ? cut.partly : size,
                                          stays_partly ? stay_cut.partly : size});
            const KeptUses kept{here, later, is_partly ? cut.partly_end : cut.end,
                                stays_partly ? stay_cut.partly_end : stay_cut.end};
            list_accesses(next, slots_here, begin, end, kept, lists_);
            hand_on_listed(waiting);
            num_entering = sort_out_others(kept, ids, next, slots_here, entering, num_entering);
            begin = end;
        }
        return num_entering;
    }

    void hand_on_listed(WaitingSlots &waiting) {
        const TracePositions::Batches batches = positions_.batches();
        const int32_t *const uses = lists_.uses, *const slots = lists_.slots;
        waiting.put_block(
            lists_.num_handed_on, [&](int64_t j) { return batches.of(uses[j]); },
            [&](int64_t j) { return WaitingSlots::Entry{uses[j], slots[j]}; });
    }

    // Which of these an access is cannot be predicted, so each is written to each list, and
    // counts only where it belongs.
    int64_t sort_out_others(const KeptUses &kept, const Id *ids, const int32_t *next,
                            const int32_t *slots_here, int32_t *entering, int64_t num_entering) {
        int32_t staying[list_block];
        int32_t *const free_slots = carried_next_ - 1;
        int64_t free = free_slots_, entered = num_entering, num_staying = 0;
        for (int32_t j = 0; j < lists_.num_others; ++j) {
            const int32_t i = lists_.others[j], slot = slots_here[i];
            const bool is_hit = slot >= 0, stays_here = next[i] < kept.stay_end;
            free_slots[free] = slot;
            entering[entered] = i;
            staying[num_staying] = i;
            free -= is_hit & !stays_here;
            entered += !is_hit;
            num_staying += is_hit & stays_here;
        }
        free_slots_ = free;
        // Slots lie anywhere, and writes wait for each other; the second cache can wait for more of
        // them than the first.
        for (int64_t j = 0; j < num_staying; ++j) {
            const int32_t slot = slots_here[staying[j]];
            __builtin_prefetch(nodes_ + slot, 1, 2);
            __builtin_prefetch(frequencies_ + slot, 1, 2);
        }
        for (int64_t j = 0; j < num_staying; ++j) {
            const int32_t i = staying[j];
            stay(ids[i], next[i], slots_here[i]);
        }
        return entered;
    }

    // The slots of rows that are carried over and stay; the others are free, the first on top.
    // The stack of free slots grows downwards, over next uses that were looked at.
    void start_slots(WaitingSlots &waiting) {
        const Cut &cut = carried_cut_;
        const Cut stay_cut = this->stay_cut(num_batches_, carried_next_, num_slots_);
        free_slots_ = num_slots_;
        for (int64_t slot = num_slots_ - 1; slot >= 0; --slot) {
            const int64_t node = std::exchange(nodes_[slot], -1);
            frequencies_[slot] = 0;
            const int32_t use = carried_next_[slot];
            const bool is_used = use >= 0 && use < (slot < cut.partly ? cut.partly_end : cut.end);
            const bool stays =
                use < (slot < stay_cut.partly ? stay_cut.partly_end : stay_cut.end);
            if (node < 0 || !(is_used || stays))
                carried_next_[--free_slots_] = static_cast<int32_t>(slot);
            else if (use < 0)
                stay(node, use, static_cast<int32_t>(slot));
            else
                waiting.put(positions_.batch(use), use, static_cast<int32_t>(slot));
        }
    }

    void stay(int64_t node, int32_t use, int32_t slot) {
        nodes_[slot] = node;
        frequencies_[slot] = -use;
    }

    Accesses &accesses_;
    const int64_t *const offsets_;
    const int64_t num_batches_;
    const int64_t num_slots_;
    int64_t *const nodes_;
    int32_t *const frequencies_;
    int64_t *const misses_;
    const TracePositions &positions_;
    int32_t *const carried_next_;  // [num_slots], behind one that is written and not counted
    std::vector<UsesInBatch> uses_;  // of the rows of one batch, in each later batch
    FreePlaces free_until_;        // batches that slots are free until
    std::vector<int64_t> kept_from_;  // slots in use after each batch, less those before it
    int64_t num_carried_ = 0;
    int64_t free_slots_ = 0;  // where in carried_next_ the stack of them ends
    std::vector<Cut> cuts_;
    Cut carried_cut_{};
    AccessLists lists_;
    std::vector<StayingRows::Threshold> thresholds_;  // of each batch, and of the rows carried over
};

// Throws for a cache that the planners of both kinds refuse.
inline void check_cache(int64_t num_slots, const int64_t *nodes, const int32_t *frequencies) {
    check_num_slots(num_slots);
    for (int64_t slot = 0; slot < num_slots; ++slot)
        if (nodes[slot] >= 0 && frequencies[slot] < 1)
            throw invalid("the row in slot ", slot, " must have a frequency of at least 1, got ",
                          frequencies[slot]);
}

}  // namespace gnnstore
