#include "kernels/sampling/sampling_draws.h"

#include <algorithm>
#include <bit>
#include <numeric>
#include <string>

#include "kernels/base/errors.h"
#include "kernels/base/relabel.h"

namespace gnnstore {
namespace {

// Up to here, comparing a draw with all earlier ones is faster than hashing it.
constexpr int64_t max_compared = 32;

// Floyd's step i of count: draw from the first last + 1 positions; if that one is taken,
// take position last, which no earlier step could draw.
int64_t last_of_step(int64_t i, int64_t degree, int64_t count) { return degree - count + i; }

int64_t draw_below(NodeDraws &draws, int64_t bound) {
    return static_cast<int64_t>(draws.below(static_cast<uint64_t>(bound)));
}

}  // namespace

void check_fanout(int64_t fanout) {
    if (fanout < -1 || fanout >= int64_t{1} << 31)
        throw invalid("a fan-out must be -1 (all) or lie in [0, 2^31), got ", fanout);
}

void PositionChooser::choose(const DrawKey &key, uint64_t node, uint32_t hop, uint32_t tree,
                             NeighborList list, int64_t fanout, bool replace, int64_t *out) {
    const int64_t count = num_chosen(list.degree, fanout, replace);
    if (count == 0) return;
    if (fanout < 0 || (!replace && count == list.degree)) {
        std::iota(out, out + count, list.start);
        return;
    }
    NodeDraws draws(key, node, hop, tree);
    if (replace) {
        for (int64_t i = 0; i < count; ++i) out[i] = list.start + draw_below(draws, list.degree);
    } else if (count <= max_compared) {
        compare_all(draws, list, count, out);
    } else {
        hash_all(draws, list, count, out);
    }
}

// Without replacement: Floyd's method (Bentley and Floyd, "A sample of brilliance", CACM
// 30(9), 1987), count draws and no memory proportional to the degree.
void PositionChooser::compare_all(NodeDraws &draws, NeighborList list, int64_t count,
                                  int64_t *out) {
    for (int64_t i = 0; i < count; ++i) {
        const int64_t last = last_of_step(i, list.degree, count);
        const int64_t drawn = list.start + draw_below(draws, last + 1);
        const bool is_taken = std::find(out, out + i, drawn) != out + i;
        out[i] = is_taken ? list.start + last : drawn;
    }
}

void PositionChooser::hash_all(NodeDraws &draws, NeighborList list, int64_t count, int64_t *out) {
    const auto num_slots = std::bit_ceil(2 * static_cast<uint64_t>(count));
    if (static_cast<int64_t>(num_slots) > capacity_) {
        capacity_ = static_cast<int64_t>(num_slots);
        taken_ = PooledArray<int64_t>(capacity_);
    }
    int64_t *taken = taken_.data();
    std::fill_n(taken, num_slots, -1);
    const uint64_t mask = num_slots - 1;
    const int shift = std::countl_zero(mask);
    const auto insert = [&](int64_t position) {  // false if it is there already
        uint64_t slot = static_cast<uint64_t>(position) * hash_multiplier >> shift;
        for (; taken[slot] != -1; slot = (slot + 1) & mask)
            if (taken[slot] == position) return false;
        taken[slot] = position;
        return true;
    };
    for (int64_t i = 0; i < count; ++i) {
        const int64_t last = last_of_step(i, list.degree, count);
        int64_t position = draw_below(draws, last + 1);
        if (!insert(position)) insert(position = last);
        out[i] = list.start + position;
    }
}

}  // namespace gnnstore
