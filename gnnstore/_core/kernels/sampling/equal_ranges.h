// Binary searches in many ascending ranges of one array: the edges between pairs of nodes.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <stdexcept>
#include <string>

#include "kernels/base/errors.h"

namespace gnnstore {

// Searches that go on together: each waits for memory at every step, and what the others read
// arrives meanwhile.
constexpr int64_t searches_at_once = 16;

// The positions [firsts[i], lasts[i]) in values[begins[i]:ends[i]], which ascend, of what equals
// wanted[i]; where nothing does, both are the position where it belongs. Throws std::out_of_range for
// a range that does not lie in [0, size).
template <class Value>
void equal_ranges(const Value *values, int64_t size, const int64_t *begins, const int64_t *ends,
                  const int64_t *wanted, int64_t count, int64_t *firsts, int64_t *lasts) {
    for (int64_t i = 0; i < count; ++i)
        if (begins[i] < 0 || begins[i] > ends[i] || ends[i] > size)
            throw out_of_range("range ", i, ", [", begins[i], ", ", ends[i], "), is not in [0, ",
                               size, ")");
    std::array<int64_t, searches_at_once> left;
    for (int64_t start = 0; start < count; start += searches_at_once) {
        const int64_t num = std::min(searches_at_once, count - start);
        int64_t most = 0;
        for (int64_t k = 0; k < num; ++k) {
            const int64_t i = start + k;
            firsts[i] = begins[i];
            left[static_cast<size_t>(k)] = ends[i] - begins[i];
            most = std::max(most, ends[i] - begins[i]);
        }
        // As many steps as the longest range needs; those that are done stay where they are.
        for (; most > 0; most >>= 1) {
            for (int64_t k = 0; k < num; ++k) {
                int64_t &rest = left[static_cast<size_t>(k)], &first = firsts[start + k];
                if (rest == 0) continue;
                const int64_t half = rest >> 1;
                const bool is_before = int64_t{values[first + half]} < wanted[start + k];
                first = is_before ? first + half + 1 : first;
                rest = is_before ? rest - half - 1 : half;
                if (rest > 0) __builtin_prefetch(values + first + (rest >> 1));
            }
        }
        for (int64_t i = start; i < start + num; ++i) {
            // An edge has few copies; a search among all of a hub's costs more than a look at them.
            constexpr int64_t few = 8;
            int64_t last = firsts[i];
            const int64_t near = std::min(ends[i], last + few);
            while (last < near && int64_t{values[last]} == wanted[i]) ++last;
            if (last == firsts[i] + few)
                last = std::upper_bound(values + last, values + ends[i], wanted[i],
                                        [](int64_t a, Value b) { return a < int64_t{b}; }) -
                       values;
            lasts[i] = last;
        }
    }
}

}  // namespace gnnstore
