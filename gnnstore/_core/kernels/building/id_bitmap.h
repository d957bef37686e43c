// A set of ids as one bit each, and the rank of an id in it: numbering nodes whose ids are
// scattered takes an eighth of a byte per possible id, and one cache miss per look-up.
#pragma once

#include <cstdint>

namespace gnnstore {

inline constexpr int64_t ids_per_word = 64;
// Words whose ids share one entry of `ranks`: a cache line.
inline constexpr int64_t words_per_rank = 8;

// Sets the bits of ids, and returns how many were not set. Throws std::out_of_range for one outside
// [0, 64 * num_words).
int64_t bitmap_mark(uint64_t *words, int64_t num_words, const int64_t *ids, int64_t num_ids);

// ranks[k] becomes the number of ids in the words before 8 k; there are
// ceil(num_words / 8) of them. Returns the number of all ids.
int64_t bitmap_count(const uint64_t *words, int64_t num_words, int64_t *ranks);

// out[i] becomes how many ids of the set are smaller than ids[i]. Throws std::out_of_range
// for one that is not in the set.
template <class Rank>
void bitmap_rank(const uint64_t *words, int64_t num_words, const int64_t *ranks, const int64_t *ids,
              int64_t num_ids, Rank *out);

}  // namespace gnnstore
