#include "kernels/traces/access_lists.h"

#include <algorithm>

#include "kernels/base/processor.h"

namespace gnnstore {
namespace {

// Adds to the lists.
void add_accesses(const int32_t *next, int32_t *slots, int32_t begin, int32_t end,
                  const KeptUses &kept, AccessLists &lists) {
    int32_t num_handed_on = lists.num_handed_on, num_others = lists.num_others;
    for (int32_t i = begin; i < end; ++i) {
        const int32_t use = next[i], slot = slots[i];
        if (static_cast<uint32_t>(use) < static_cast<uint32_t>(kept.later)) [[unlikely]] {
            slots[use - kept.here] = slot;  // repeated in this batch: the access there goes on
            continue;
        }
        const bool is_hit = slot >= 0;
        const bool is_used = static_cast<uint32_t>(use) < static_cast<uint32_t>(kept.kept_end);
        const bool stays = use < kept.stay_end;
        lists.uses[num_handed_on] = use;
        lists.slots[num_handed_on] = slot;
        lists.others[num_others] = i;
        num_handed_on += is_hit & is_used;
        num_others += (is_hit | is_used | stays) & !(is_hit & is_used);
    }
    lists.num_handed_on = num_handed_on;
    lists.num_others = num_others;
}

#if defined(GNNSTORE_X86_64)

__attribute__((target("avx512f"))) int32_t list_between_avx512(const int32_t *values, int32_t size,
                                                               int32_t low, int32_t high,
                                                               int32_t *found) {
    const __m512i lows = _mm512_set1_epi32(low), highs = _mm512_set1_epi32(high);
    __m512i places =
        _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    int32_t num_found = 0;
    for (int32_t i = 0; i < size; i += 16) {
        const auto here = static_cast<__mmask16>((1u << std::min(size - i, 16)) - 1);
        const __m512i value = _mm512_maskz_loadu_epi32(here, values + i);
        const __mmask16 is_low = _mm512_mask_cmpge_epi32_mask(here, value, lows);
        const __mmask16 is_listed = _mm512_mask_cmple_epi32_mask(is_low, value, highs);
        _mm512_storeu_si512(found + num_found, _mm512_maskz_compress_epi32(is_listed, places));
        num_found += __builtin_popcount(is_listed);
        places = _mm512_add_epi32(places, _mm512_set1_epi32(16));
    }
    return num_found;
}

__attribute__((target("avx512f"))) void list_accesses_avx512(const int32_t *next, int32_t *slots,
                                                             int32_t begin, int32_t end,
                                                             const KeptUses &kept,
                                                             AccessLists &lists) {
    const __m512i later = _mm512_set1_epi32(kept.later);
    const __m512i kept_end = _mm512_set1_epi32(kept.kept_end);
    const __m512i stay_end = _mm512_set1_epi32(kept.stay_end);
    const __m512i counted =
        _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    int32_t num_handed_on = 0, num_others = 0;
    for (int32_t i = begin; i < end; i += 16) {
        const auto here = static_cast<__mmask16>((1u << std::min(end - i, 16)) - 1);
        const __m512i use = _mm512_maskz_loadu_epi32(here, next + i);
        if (_mm512_mask_cmplt_epu32_mask(here, use, later) != 0) [[unlikely]] {
            lists.num_handed_on = num_handed_on;
            lists.num_others = num_others;
            add_accesses(next, slots, i, std::min(i + 16, end), kept, lists);
            num_handed_on = lists.num_handed_on;
            num_others = lists.num_others;
            continue;
        }
        const __m512i slot = _mm512_maskz_loadu_epi32(here, slots + i);
        const unsigned is_hit = _mm512_mask_cmpge_epi32_mask(here, slot, _mm512_setzero_si512());
        const unsigned is_used = _mm512_mask_cmplt_epu32_mask(here, use, kept_end);
        const unsigned stays = _mm512_mask_cmplt_epi32_mask(here, use, stay_end);
        const unsigned is_handed_on = is_hit & is_used;
        const unsigned is_other = (is_hit | is_used | stays) & ~is_handed_on;
        const auto handed_on = static_cast<__mmask16>(is_handed_on);
        const __m512i place = _mm512_add_epi32(counted, _mm512_set1_epi32(i));
        _mm512_storeu_si512(lists.uses + num_handed_on,
                            _mm512_maskz_compress_epi32(handed_on, use));
        _mm512_storeu_si512(lists.slots + num_handed_on,
                            _mm512_maskz_compress_epi32(handed_on, slot));
        _mm512_storeu_si512(lists.others + num_others,
                            _mm512_maskz_compress_epi32(static_cast<__mmask16>(is_other), place));
        num_handed_on += __builtin_popcount(is_handed_on);
        num_others += __builtin_popcount(is_other);
    }
    lists.num_handed_on = num_handed_on;
    lists.num_others = num_others;
}

bool has_avx512() {
    static const bool present = __builtin_cpu_supports("avx512f");
    return present;
}

#endif

}  // namespace

int32_t list_between_portable(const int32_t *values, int32_t size, int32_t low, int32_t high,
                              int32_t *found) {
    int32_t num_found = 0;
    for (int32_t i = 0; i < size; ++i) {
        found[num_found] = i;
        num_found += (values[i] >= low) & (values[i] <= high);
    }
    return num_found;
}

void list_accesses_portable(const int32_t *next, int32_t *slots, int32_t begin, int32_t end,
                            const KeptUses &kept, AccessLists &lists) {
    lists.num_handed_on = lists.num_others = 0;
    add_accesses(next, slots, begin, end, kept, lists);
}

int32_t list_between(const int32_t *values, int32_t size, int32_t low, int32_t high,
                     int32_t *found) {
#if defined(GNNSTORE_X86_64)
    if (has_avx512()) return list_between_avx512(values, size, low, high, found);
#endif
    return list_between_portable(values, size, low, high, found);
}

void list_accesses(const int32_t *next, int32_t *slots, int32_t begin, int32_t end,
                   const KeptUses &kept, AccessLists &lists) {
#if defined(GNNSTORE_X86_64)
    if (has_avx512()) return list_accesses_avx512(next, slots, begin, end, kept, lists);
#endif
    list_accesses_portable(next, slots, begin, end, kept, lists);
}

}  // namespace gnnstore
