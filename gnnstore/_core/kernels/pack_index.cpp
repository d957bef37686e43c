#include "kernels/pack_index.h"

#include <algorithm>
#include <limits>
#include <string>

#include "kernels/check_ids.h"
#include "kernels/parallel.h"
#include "kernels/read_plan.h"

namespace gnnstore {

void check_offsets(const int64_t *offsets, int64_t num_batches, int64_t num_accesses) {
    if (offsets[0] != 0 || offsets[num_batches] != num_accesses)
        throw std::invalid_argument("offsets must go from 0 to " + std::to_string(num_accesses) +
                                    ", got " + std::to_string(offsets[0]) + " to " +
                                    std::to_string(offsets[num_batches]));
    for (int64_t i = 0; i < num_batches; ++i) {
        const int64_t size = offsets[i + 1] - offsets[i];
        if (size < 0)
            throw std::invalid_argument("offsets must not descend, as they do behind batch " +
                                        std::to_string(i));
        if (size > std::numeric_limits<int32_t>::max())
            throw std::invalid_argument("batch " + std::to_string(i) + " has " +
                                        std::to_string(size) +
                                        " rows, more than 2^31 - 1; make batches smaller");
    }
}

void count_misses(const int32_t *slots, const int64_t *offsets, int64_t num_batches,
                  int64_t *begins) {
    begins[0] = 0;
    for (int64_t i = 0; i < num_batches; ++i)
        begins[i + 1] = begins[i] + std::count_if(slots + offsets[i], slots + offsets[i + 1],
                                                  [](int32_t slot) { return slot < 0; });
}

template <class Id>
std::vector<int32_t> index_misses(const Misses<Id> &misses, int64_t num_rows_in_table,
                                  const int64_t *begins, int32_t *positions, int64_t *num_rows,
                                  int num_threads) {
    check_num_threads(num_threads);
    check_ids(misses.ids, misses.num_accesses, num_rows_in_table);
    // Most batches repeat nothing, so what is repeated is kept apart.
    std::vector<std::vector<int32_t>> repeats(static_cast<size_t>(misses.num_batches));
    run_workers(num_threads, misses.num_batches, [&](TaskQueue &queue) {
        for (int64_t i; queue.take(i);) {
            const int64_t first = misses.offsets[i], size = misses.offsets[i + 1] - first;
            const WantedRows wanted(misses.ids + first, misses.slots + first, size,
                                    num_rows_in_table);
            int32_t *const out = positions + begins[i];
            int64_t num_distinct = 0;
            for (int64_t k = 0; k < wanted.size(); ++k)
                if (k == 0 || wanted.row(k) != wanted.row(k - 1))
                    out[num_distinct++] = static_cast<int32_t>(wanted.position(k));
            num_rows[i] = num_distinct;
            if (num_distinct == wanted.size()) continue;
            std::vector<int32_t> &sources = repeats[static_cast<size_t>(i)];
            sources.reserve(static_cast<size_t>(wanted.size() - num_distinct));
            for (int64_t k = 1, distinct = 0, end = num_distinct; k < wanted.size(); ++k) {
                if (wanted.row(k) != wanted.row(k - 1)) {
                    ++distinct;
                    continue;
                }
                out[end++] = static_cast<int32_t>(wanted.position(k));
                sources.push_back(out[distinct]);
            }
        }
    });
    std::vector<int32_t> joined;
    for (const std::vector<int32_t> &one : repeats)
        joined.insert(joined.end(), one.begin(), one.end());
    return joined;
}

template std::vector<int32_t> index_misses(const Misses<int32_t> &, int64_t, const int64_t *,
                                           int32_t *, int64_t *, int);
template std::vector<int32_t> index_misses(const Misses<int64_t> &, int64_t, const int64_t *,
                                           int32_t *, int64_t *, int);

}  // namespace gnnstore
