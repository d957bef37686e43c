// The checks that every kernel makes before it writes anything.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>
#include <type_traits>

#include "kernels/base/errors.h"

namespace gnnstore {

template <class Id>
void check_ids(const Id *ids, int64_t num_ids, int64_t num_rows) {
    // Branch-free blocks that look at the highest bit of differences, which any processor's
    // vectors can subtract; only some have a largest of unsigned ids.
    using Unsigned = std::make_unsigned_t<Id>;
    constexpr int64_t block = 4096;
    constexpr int64_t greatest = std::numeric_limits<Id>::max();
    const auto last = static_cast<Unsigned>(std::min(num_rows - 1, greatest));
    for (int64_t begin = 0; begin < num_ids; begin += block) {
        const int64_t end = std::min(num_ids, begin + block);
        Unsigned outside = 0;
        for (int64_t k = begin; k < end; ++k) {
            const auto id = static_cast<Unsigned>(ids[k]);
            outside |= id | (last - id);
        }
        if (static_cast<Id>(outside) >= 0) continue;
        for (int64_t k = begin; k < end; ++k)
            if (ids[k] < 0 || static_cast<int64_t>(ids[k]) >= num_rows)
                throw out_of_range("row id ", ids[k], " at position ", k, " is outside [0, ",
                                   num_rows, ")");
    }
}

// Whether `size` values that are read lie where something is written.
template <class T>
bool overlap(const uint8_t *out, int64_t out_bytes, const T *values, int64_t size) {
    const auto *const begin = reinterpret_cast<const uint8_t *>(values);
    const auto *const end = reinterpret_cast<const uint8_t *>(values + size);
    return out_bytes > 0 && size > 0 && out < end && begin < out + out_bytes;
}

}  // namespace gnnstore
