// Scans of next uses (see NextUses), in blocks: what an access is cannot be predicted, and a
// branch for each would cost more than the scan.
#pragma once

#include <algorithm>
#include <cstdint>

namespace gnnstore {

// Accesses at a time, whose lists stay in a core's first cache.
inline constexpr int32_t scan_block = 512;

// The position behind the wanted-th next use from `first` on and before `last`, which is there.
inline int64_t behind_uses(const int32_t *next, int64_t size, int32_t first, int32_t last,
                           int64_t wanted) {
    const auto count = [&](int64_t begin, int64_t end) {
        int32_t found = 0;
        for (int64_t k = begin; k < end; ++k) found += (next[k] >= first) & (next[k] < last);
        return found;
    };
    int64_t position = 0;
    for (; wanted > 0 && position + scan_block <= size; position += scan_block) {
        const int32_t found = count(position, position + scan_block);
        if (found >= wanted) break;
        wanted -= found;
    }
    for (; wanted > 0; ++position) wanted -= count(position, position + 1);
    return position;
}

// Calls use(first + i, frequency) for the rows that are not used again.
template <class Use>
void for_not_used_again(const int32_t *next, int64_t size, int64_t first, const Use &use) {
    int32_t found[scan_block];
    for (int64_t begin = 0; begin < size; begin += scan_block) {
        int32_t num_found = 0;
        for (int64_t i = begin; i < std::min(begin + scan_block, size); ++i) {
            found[num_found] = static_cast<int32_t>(i);
            num_found += next[i] < 0;
        }
        for (int32_t j = 0; j < num_found; ++j) use(first + found[j], -next[found[j]]);
    }
}

}  // namespace gnnstore
