#include "kernels/rows/pinned_rows.h"

#include <algorithm>
#include <memory>
#include <string>

#include "kernels/base/check_ids.h"
#include "kernels/base/errors.h"

namespace gnnstore {
namespace {

// std::popcount is a call where not all processors have an instruction for it: 3 ns in place of 1.
uint64_t count_bits(uint64_t word) {
    word -= (word >> 1) & 0x5555555555555555;
    word = (word & 0x3333333333333333) + ((word >> 2) & 0x3333333333333333);
    word = (word + (word >> 4)) & 0x0f0f0f0f0f0f0f0f;
    return (word * 0x0101010101010101) >> 56;
}

}  // namespace

template <class Id>
int64_t drop_pinned(const uint64_t *bits, int64_t num_words, const Id *ids, int64_t num_ids,
                    Id *kept) {
    check_ids(ids, num_ids, num_words * 64);
    int64_t count = 0;
    for (int64_t k = 0; k < num_ids; ++k) {
        // Which ids are pinned cannot be predicted: no branch depends on it.
        const auto id = static_cast<uint64_t>(ids[k]);
        kept[count] = ids[k];
        count += static_cast<int64_t>(~(bits[id / 64] >> (id % 64)) & 1);
    }
    return count;
}

template int64_t drop_pinned(const uint64_t *, int64_t, const int32_t *, int64_t, int32_t *);
template int64_t drop_pinned(const uint64_t *, int64_t, const int64_t *, int64_t, int64_t *);

template <class Id>
void add_pinned(const PinnedStep &step, const Id *ids, int64_t num_ids) {
    using std::to_string;
    check_ids(ids, num_ids, step.num_words * 64);
    check_ids(step.positions, step.num_changes, step.num_unpinned);
    // Which ids are pinned cannot be predicted: no branch depends on it. Both slots are found, and
    // the places of all are noted, each over the place of a pinned one before it.
    const auto places = std::make_unique_for_overwrite<int32_t[]>(
        static_cast<size_t>(num_ids + 1));
    const int32_t none = -1;
    const int32_t *const slots = step.num_unpinned > 0 ? step.slots : &none;
    const int64_t last = std::max<int64_t>(0, step.num_unpinned - 1);
    int64_t planned = 0;
    for (int64_t k = 0; k < num_ids; ++k) {
        const auto id = static_cast<uint64_t>(ids[k]);
        const uint64_t word = step.bits[id / 64];
        const uint64_t is_pinned = (word >> (id % 64)) & 1;
        const int64_t pinned = step.first_slot + step.ranks[id / 64] +
                               static_cast<int64_t>(
                                   count_bits(word & ((uint64_t{1} << (id % 64)) - 1)));
        const int64_t other = slots[std::min(planned, last)];
        const auto mask = -static_cast<int64_t>(is_pinned);
        step.all_slots[k] = static_cast<int32_t>((pinned & mask) | (other & ~mask));
        places[planned] = static_cast<int32_t>(k);
        planned += static_cast<int64_t>(is_pinned ^ 1);
    }
    require(planned == step.num_unpinned, "of ", num_ids, " ids ", planned, " are not pinned, but ",
            step.num_unpinned, " have been planned");
    for (int64_t i = 0; i < step.num_changes; ++i)
        step.all_positions[i] = places[step.positions[i]];
}

template void add_pinned(const PinnedStep &, const int32_t *, int64_t);
template void add_pinned(const PinnedStep &, const int64_t *, int64_t);

}  // namespace gnnstore
