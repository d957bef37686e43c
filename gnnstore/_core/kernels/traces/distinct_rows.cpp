#include "kernels/traces/distinct_rows.h"

#include <algorithm>
#include <bit>

#include "kernels/base/pooled_array.h"
#include "kernels/base/relabel.h"
#include "kernels/traces/superbatch.h"

namespace gnnstore {

void distinct_rows(const int64_t *nodes, int64_t num_slots, int64_t *distinct) {
    check_num_slots(num_slots);
    // Open addressing with linear probing over the first slots of rows, counted from 1: at most
    // 4/5 full, since this is done once in a while and memory is what counts.
    const auto num_places = static_cast<int64_t>(
        std::bit_ceil(static_cast<uint64_t>(num_slots + num_slots / 4 + 2)));
    const PooledArray<uint32_t> places(num_places);
    std::fill_n(places.data(), num_places, 0);
    const int64_t mask = num_places - 1;
    const int shift = std::countl_zero(static_cast<uint64_t>(mask));
    for (int64_t slot = 0; slot < num_slots; ++slot) {
        const int64_t node = nodes[slot];
        distinct[slot] = -1;
        if (node < 0) continue;
        auto i = static_cast<int64_t>(static_cast<uint64_t>(node) * hash_multiplier >> shift);
        while (places[i] != 0 && distinct[places[i] - 1] != node) i = (i + 1) & mask;
        if (places[i] != 0) continue;
        places[i] = static_cast<uint32_t>(slot + 1);
        distinct[slot] = node;
    }
}

}  // namespace gnnstore
