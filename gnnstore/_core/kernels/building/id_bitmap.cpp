#include "kernels/building/id_bitmap.h"

#include <algorithm>
#include <bit>
#include <string>

#include "kernels/base/errors.h"

namespace gnnstore {
namespace {

// Ids are taken in groups, whose words are prefetched together.
constexpr int64_t group_ids = 64;

[[noreturn]] void refuse(int64_t id, const char *why) {
    throw out_of_range("the id ", id, " is ", why);
}

}  // namespace

int64_t bitmap_mark(uint64_t *words, int64_t num_words, const int64_t *ids, int64_t num_ids) {
    int64_t num_new = 0;
    for (int64_t first = 0; first < num_ids; first += group_ids) {
        const int64_t end = std::min(num_ids, first + group_ids);
        for (int64_t i = first; i < end; ++i) {
            if (ids[i] < 0 || ids[i] / ids_per_word >= num_words) refuse(ids[i], "out of range");
            __builtin_prefetch(words + ids[i] / ids_per_word, 1);
        }
        for (int64_t i = first; i < end; ++i) {
            uint64_t &word = words[ids[i] / ids_per_word];
            const uint64_t bit = uint64_t{1} << (ids[i] % ids_per_word);
            num_new += (word & bit) == 0;
            word |= bit;
        }
    }
    return num_new;
}

int64_t bitmap_count(const uint64_t *words, int64_t num_words, int64_t *ranks) {
    int64_t sum = 0;
    for (int64_t i = 0; i < num_words; ++i) {
        if (i % words_per_rank == 0) ranks[i / words_per_rank] = sum;
        sum += std::popcount(words[i]);
    }
    return sum;
}

template <class Rank>
void bitmap_rank(const uint64_t *words, int64_t num_words, const int64_t *ranks, const int64_t *ids,
              int64_t num_ids, Rank *out) {
    for (int64_t first = 0; first < num_ids; first += group_ids) {
        const int64_t end = std::min(num_ids, first + group_ids);
        for (int64_t i = first; i < end; ++i) {
            const int64_t word = ids[i] / ids_per_word;
            if (ids[i] < 0 || word >= num_words) refuse(ids[i], "out of range");
            __builtin_prefetch(words + word);
            __builtin_prefetch(ranks + word / words_per_rank);
        }
        for (int64_t i = first; i < end; ++i) {
            const int64_t word = ids[i] / ids_per_word;
            const uint64_t bit = uint64_t{1} << (ids[i] % ids_per_word);
            if ((words[word] & bit) == 0) refuse(ids[i], "not in the set");
            int64_t rank = ranks[word / words_per_rank];
            for (int64_t w = word / words_per_rank * words_per_rank; w < word; ++w)
                rank += std::popcount(words[w]);
            out[i] = static_cast<Rank>(rank + std::popcount(words[word] & (bit - 1)));
        }
    }
}

template void bitmap_rank(const uint64_t *, int64_t, const int64_t *, const int64_t *, int64_t,
                       int32_t *);
template void bitmap_rank(const uint64_t *, int64_t, const int64_t *, const int64_t *, int64_t,
                       int64_t *);

}  // namespace gnnstore
