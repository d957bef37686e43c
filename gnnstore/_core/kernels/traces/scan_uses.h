// Scans of next uses (see NextUses), in blocks: what an access is cannot be predicted, and a
// branch for each would cost more than the scan.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include "kernels/traces/access_lists.h"

namespace gnnstore {

// The position behind the wanted-th next use from `first` on and before `last`, which is there.
inline int64_t behind_uses(const int32_t *next, int64_t size, int32_t first, int32_t last,
                           int64_t wanted) {
    const auto count = [&](int64_t begin, int64_t end) {
        int32_t found = 0;
        for (int64_t k = begin; k < end; ++k) found += (next[k] >= first) & (next[k] < last);
        return found;
    };
    int64_t position = 0;
    for (; wanted > 0 && position + list_block <= size; position += list_block) {
        const int32_t found = count(position, position + list_block);
        if (found >= wanted) break;
        wanted -= found;
    }
    for (; wanted > 0; ++position) wanted -= count(position, position + 1);
    return position;
}

// Calls use(first + i, frequency) for the rows that are not used again.
template <class Use>
void for_not_used_again(const int32_t *next, int64_t size, int64_t first, const Use &use) {
    int32_t found[list_block + list_slack];
    for (int64_t begin = 0; begin < size; begin += list_block) {
        const int32_t *const here = next + begin;
        const auto size_here = static_cast<int32_t>(std::min<int64_t>(list_block, size - begin));
        const int32_t num_found =
            list_between(here, size_here, std::numeric_limits<int32_t>::min(), -1, found);
        for (int32_t j = 0; j < num_found; ++j) use(first + begin + found[j], -here[found[j]]);
    }
}

}  // namespace gnnstore
