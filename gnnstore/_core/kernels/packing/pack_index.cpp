#include "kernels/packing/pack_index.h"

#include <limits>
#include <string>

#include "kernels/base/check_ids.h"
#include "kernels/base/errors.h"
#include "kernels/reading/read_plan.h"

namespace gnnstore {

template <class Id>
SortedMisses sort_misses(const Id *ids, const int32_t *slots, int64_t size,
                         int64_t num_rows_in_table, Id *rows, int32_t *positions, int64_t room) {
    if (size > std::numeric_limits<int32_t>::max())
        throw invalid("a batch has ", size, " rows, more than 2^31 - 1; make batches smaller");
    check_ids(ids, size, num_rows_in_table);
    const WantedRows wanted(ids, slots, size, num_rows_in_table);
    SortedMisses found;
    for (int64_t k = 0; k < wanted.size(); ++k) {
        const auto position = static_cast<int32_t>(wanted.position(k));
        if (k > 0 && wanted.row(k) == wanted.row(k - 1)) {
            found.repeat_targets.push_back(position);
            found.repeat_sources.push_back(positions[found.num_rows - 1]);
            continue;
        }
        require(found.num_rows != room, "more than ", room, " rows are missed");
        rows[found.num_rows] = static_cast<Id>(wanted.row(k));
        positions[found.num_rows++] = position;
    }
    return found;
}

template SortedMisses sort_misses(const int32_t *, const int32_t *, int64_t, int64_t, int32_t *,
                                  int32_t *, int64_t);
template SortedMisses sort_misses(const int64_t *, const int32_t *, int64_t, int64_t, int64_t *,
                                  int32_t *, int64_t);

}  // namespace gnnstore
