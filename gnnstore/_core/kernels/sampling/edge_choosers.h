// Choices among a node's in-neighbours that depend on what lies along its list: times or weights.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "kernels/base/errors.h"
#include "kernels/sampling/excluded_edges.h"
#include "kernels/sampling/sampling_draws.h"

namespace gnnstore {

// What lies along one list: pointers to what belongs to its first edge. The widths are the
// edge type's.
struct ListColumns {
    const void *order = nullptr, *indices = nullptr;
    const int64_t *times = nullptr;  // of the edges
    const uint64_t *sums = nullptr;
};

// The first number in [first, end) for which is_before is false: true ones come first. Steps are
// taken without a branch, since none of them can be foreseen.
template <class IsBefore>
int64_t first_not(int64_t first, int64_t end, const IsBefore &is_before) {
    for (int64_t left = end - first; left > 0;) {
        const int64_t half = left / 2;
        const bool is_right = is_before(first + half);
        first += is_right ? half + 1 : 0;
        left = is_right ? left - half - 1 : half;
    }
    return first;
}

// Times after `after` and up to `until`.
struct TimeRange {
    int64_t after, until;
    bool has_start;  // else there is no lower bound

    static TimeRange up_to(int64_t time, int64_t window) {
        constexpr int64_t least = std::numeric_limits<int64_t>::min();
        const bool fits = time >= least + window;
        return {fits ? time - window : least, time, window > 0};
    }
    bool has(int64_t time) const { return time <= until && (!has_start || time > after); }
};

// A list in the order of its times: the edge of rank r stands at place order[r] of the list.
// Neither order nor times are trusted: an edge outside of a range is never taken for one inside.
template <class Order, class TimeAt>  // TimeAt(place): the time
class TimedList {
public:
    TimedList(const Order *order, int64_t degree, const TimeAt &time_at)
        : order_(order), degree_(degree), time_at_(time_at) {}

    int64_t place(int64_t rank) const {
        const auto place = static_cast<int64_t>(order_[rank]);
        require(place < degree_, "the order by time has the place ", place, " in a list of ",
                degree_, " edges");
        return place;
    }

    // The first rank whose time is later.
    int64_t first_after(int64_t time) const {
        return first_not(0, degree_,
                         [&](int64_t rank) { return time_at_(place(rank)) <= time; });
    }

    void check(int64_t place, const TimeRange &range) const {
        if (!range.has(time_at_(place)))
            throw invalid("the order by time does not ascend");
    }

private:
    const Order *order_;
    const int64_t degree_;
    const TimeAt &time_at_;
};

// Chooses in-neighbours of a list by time; keeps scratch memory.
class TimeChooser {
public:
    // Writes positions and returns their number: of the edges in the range and not excluded any
    // `fanout` ones, or the latest; all, in the order of their times, if there are no more.
    template <class Order, class TimeAt>
    int64_t choose(const TimedList<Order, TimeAt> &timed, const TimeRange &range, bool latest,
                   const DrawKey &key, int64_t node, uint32_t word, uint32_t tree,
                   NeighborList list, const ExcludedEdges &excluded, int64_t fanout, bool replace,
                   int64_t *out) {
        const int64_t begin = range.has_start ? timed.first_after(range.after) : 0;
        const int64_t end = std::max(begin, timed.first_after(range.until));
        shifted_.clear();
        if (list.num_excluded > 0)
            for (int64_t rank = begin; rank < end; ++rank)
                if (excluded.has(list.start + timed.place(rank)))
                    shifted_.push_back(rank - static_cast<int64_t>(shifted_.size()));
        const int64_t eligible = end - begin - static_cast<int64_t>(shifted_.size());
        const int64_t first = latest && fanout >= 0 ? std::max<int64_t>(0, eligible - fanout) : 0;
        const int64_t count = num_chosen(eligible - first, fanout, replace);
        positions_.choose(key, static_cast<uint64_t>(node), word, tree,
                          {begin + first, eligible - first}, fanout, replace, out);
        for (int64_t k = 0; k < count; ++k) {
            // Ranks were drawn as if the excluded ones were not there.
            const auto after = std::upper_bound(shifted_.begin(), shifted_.end(), out[k]);
            const int64_t place = timed.place(out[k] + (after - shifted_.begin()));
            timed.check(place, range);
            out[k] = list.start + place;
        }
        return count;
    }

private:
    PositionChooser positions_;
    std::vector<int64_t> shifted_;  // excluded ranks, each less those before it
};

// Chooses in-neighbours of a list in proportion to integer weights, given their sums; keeps scratch
// memory. Without replacement this is successive sampling: each edge is drawn among those left.
class WeightChooser {
public:
    // Writes positions, in the order drawn, and returns their number: fewer than `fanout` if fewer
    // weights are positive. A list that is taken whole is in its own order.
    int64_t choose(const uint64_t *sums, const DrawKey &key, int64_t node, uint32_t word,
                   uint32_t tree, NeighborList list, const ExcludedEdges &excluded, int64_t fanout,
                   bool replace, int64_t *out);

private:
    // Places that are not left, and the sum of their weights and of those before.
    struct Taken {
        int64_t begin, end;
        uint64_t sum;
    };

    std::vector<Taken> taken_;  // in the order of places
};

}  // namespace gnnstore
