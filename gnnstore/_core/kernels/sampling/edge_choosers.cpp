#include "kernels/sampling/edge_choosers.h"

#include <algorithm>

#include "kernels/base/errors.h"

namespace gnnstore {
namespace {

[[noreturn]] void refuse_sums(int64_t node) {
    throw invalid("the sums of weights of the in-neighbours of node ", node, " do not ascend");
}

}  // namespace

int64_t WeightChooser::choose(const uint64_t *sums, const DrawKey &key, int64_t node,
                              uint32_t word, uint32_t tree, NeighborList list,
                              const ExcludedEdges &excluded, int64_t fanout, bool replace,
                              int64_t *out) {
    if (list.degree == 0) return 0;
    const auto before = [&](int64_t place) { return place == 0 ? 0 : sums[place - 1]; };
    taken_.clear();
    uint64_t taken = 0;
    if (list.num_excluded > 0)
        excluded.for_each_range(node, [&](int64_t first, int64_t end) {
            const int64_t begin = first - list.start, stop = end - list.start;
            taken += sums[stop - 1] - before(begin);
            taken_.push_back({begin, stop, taken});
        });
    if (!replace && fanout >= list.num_eligible()) {
        int64_t count = 0, place = 0;
        const auto take_up_to = [&](int64_t end) {
            for (; place < end; ++place)
                if (sums[place] != before(place)) out[count++] = list.start + place;
        };
        for (const Taken &range : taken_) {
            take_up_to(range.begin);
            place = range.end;
        }
        take_up_to(list.degree);
        return count;
    }
    uint64_t left = sums[list.degree - 1] - taken;
    NodeDraws draws(key, static_cast<uint64_t>(node), word, tree);
    int64_t count = 0;
    for (; count < fanout && left > 0; ++count) {
        // The first place up to which the weights left sum to more than was drawn.
        const uint64_t drawn = draws.below(left);
        const auto next =
            std::partition_point(taken_.begin(), taken_.end(), [&](const Taken &range) {
                return sums[range.end - 1] - range.sum <= drawn;
            });
        const bool is_first = next == taken_.begin();
        const int64_t begin = is_first ? 0 : (next - 1)->end;
        const int64_t end = next == taken_.end() ? list.degree : next->begin;
        const uint64_t sum = is_first ? 0 : (next - 1)->sum;
        const int64_t place = first_not(
            begin, end, [&](int64_t at) { return sums[at] <= drawn + sum; });
        if (place >= end) refuse_sums(node);
        out[count] = list.start + place;
        if (replace) continue;
        const uint64_t weight = sums[place] - before(place);
        if (weight == 0 || weight > left) refuse_sums(node);
        left -= weight;
        auto own = taken_.insert(next, {place, place + 1, sum + weight});
        for (++own; own != taken_.end(); ++own) own->sum += weight;
    }
    return count;
}

}  // namespace gnnstore
