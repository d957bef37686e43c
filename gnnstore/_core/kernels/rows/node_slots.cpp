#include "kernels/rows/node_slots.h"

#include <bit>
#include <limits>

#include "kernels/base/check_ids.h"
#include "kernels/base/errors.h"

namespace gnnstore {

void index_nodes(const int64_t *nodes, int64_t num_cached, int64_t num_nodes, uint64_t *bits,
                 int32_t *ranks) {
    if (num_cached > std::numeric_limits<int32_t>::max())
        throw invalid("a cache holds at most 2^31 - 1 rows, got ", num_cached);
    check_ids(nodes, num_cached, num_nodes);
    const int64_t num_words = num_nodes / 64 + (num_nodes % 64 != 0);
    std::fill_n(bits, num_words, 0);
    for (int64_t k = 0; k < num_cached; ++k) {
        if (k > 0 && nodes[k] <= nodes[k - 1])
            throw invalid("nodes must ascend strictly, but ", nodes[k], " at position ", k, " "
                          "follows ", nodes[k - 1]);
        bits[nodes[k] / 64] |= uint64_t{1} << (nodes[k] % 64);
    }
    int32_t rank = 0;
    for (int64_t word = 0; word < num_words; ++word) {
        ranks[word] = rank;
        rank += std::popcount(bits[word]);
    }
}

template <class Id>
void find_slots(const uint64_t *bits, const int32_t *ranks, int64_t num_words, const Id *ids,
                int64_t num_ids, int32_t *slots) {
    check_ids(ids, num_ids, num_words * 64);
    for (int64_t k = 0; k < num_ids; ++k) {
        const auto id = static_cast<uint64_t>(ids[k]);
        const uint64_t word = bits[id / 64];
        const uint64_t bit = uint64_t{1} << (id % 64);
        slots[k] = (word & bit) != 0 ? ranks[id / 64] + std::popcount(word & (bit - 1)) : -1;
    }
}

template void find_slots(const uint64_t *, const int32_t *, int64_t, const int32_t *, int64_t,
                         int32_t *);
template void find_slots(const uint64_t *, const int32_t *, int64_t, const int64_t *, int64_t,
                         int32_t *);

template <class Id, class Count>
void count_ids(const Id *ids, int64_t num_ids, Count *counts, int64_t num_counts) {
    check_ids(ids, num_ids, num_counts);
    for (int64_t k = 0; k < num_ids; ++k)
        if (Count &count = counts[ids[k]]; count != std::numeric_limits<Count>::max()) ++count;
}

template void count_ids(const int32_t *, int64_t, uint8_t *, int64_t);
template void count_ids(const int64_t *, int64_t, uint8_t *, int64_t);
template void count_ids(const int32_t *, int64_t, uint32_t *, int64_t);
template void count_ids(const int64_t *, int64_t, uint32_t *, int64_t);

}  // namespace gnnstore
