#include "kernels/base/errors.h"
#include "kernels/rows/fixed_cache.h"

#include "kernels/base/check_ids.h"
#include "kernels/rows/node_slots.h"

namespace gnnstore {

template <class Id>
FixedStep plan_fixed(const FixedCache &cache, const Id *ids, int64_t num_ids, uint64_t *seen,
                     int32_t *slots) {
    FixedStep step;
    find_slots(cache.bits, cache.ranks, cache.num_words, ids, num_ids, slots);
    for (int64_t k = 0; k < num_ids; ++k)
        if (slots[k] >= cache.num_slots)
            throw out_of_range("slot ", slots[k], " is outside [0, ", cache.num_slots, ")");
    for (int64_t k = 0; k < num_ids; ++k) {
        const int32_t slot = slots[k];
        if (slot >= 0 && cache.held[slot] != 0) continue;
        slots[k] = -1;
        const auto id = static_cast<uint64_t>(ids[k]);
        const uint64_t bit = uint64_t{1} << (id % 64);
        if ((seen[id / 64] & bit) != 0) continue;
        seen[id / 64] |= bit;
        ++step.misses;
        if (slot < 0) continue;
        step.positions.push_back(static_cast<int32_t>(k));
        step.slots.push_back(slot);
    }
    for (int64_t k = 0; k < num_ids; ++k)
        if (slots[k] < 0) seen[static_cast<uint64_t>(ids[k]) / 64] = 0;
    for (const int32_t slot : step.slots) cache.held[slot] = 1;
    return step;
}

template FixedStep plan_fixed(const FixedCache &, const int32_t *, int64_t, uint64_t *, int32_t *);
template FixedStep plan_fixed(const FixedCache &, const int64_t *, int64_t, uint64_t *, int32_t *);

}  // namespace gnnstore
