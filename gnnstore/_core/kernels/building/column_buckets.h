// Edges by ranges of targets: each range holds about as many edges as are sorted in the cache.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>
#include <utility>
#include <vector>

#include "kernels/building/column_sort.h"

namespace gnnstore {

// Ids that are looked at while they are in the first-level cache.
inline constexpr int64_t check_edges = 256;

template <class Id>
bool all_below(const Id *ids, int64_t num_ids, int64_t bound) {
    using Unsigned = std::make_unsigned_t<Id>;  // a negative id is a huge one
    Unsigned largest = 0;
    for (int64_t i = 0; i < num_ids; ++i)
        largest = std::max(largest, static_cast<Unsigned>(ids[i]));
    return num_ids == 0 || static_cast<uint64_t>(largest) < static_cast<uint64_t>(bound);
}

// Targets with the same upper bits, by which edges are counted.
struct TargetBins {
    explicit TargetBins(int64_t num_targets);

    template <class Id>
    size_t of(Id target) const {
        return static_cast<size_t>(target >> shift);
    }

    int shift;
    size_t count;
};

// Consecutive targets, and where their edges lie.
struct Bucket {
    int64_t first_target, last_target;  // one past
    int64_t begin, end;

    int64_t num_edges() const { return end - begin; }
};

struct BucketPlan {
    std::vector<uint16_t> bucket_of_bin;
    std::vector<Bucket> buckets;
};

// How many edges a bucket should have, so that it is sorted in the second-level cache, and of how
// many buckets the lines that are written to them stay there; beyond, buckets are larger.
struct BucketGoal {
    int64_t num_edges, max_buckets;
};

// Joins bins, of which the edges were counted, to buckets of at most so many targets.
BucketPlan plan_buckets(const TargetBins &bins, const std::vector<int64_t> &counts,
                        int64_t num_targets, int64_t max_targets, const BucketGoal &aim);

// Brings the edges of a bucket to their columns by swapping, which needs no second copy of
// them but loses their order. Returns where columns begin, and where the last one ends.
template <class Id, class EdgeId, class Low>
std::vector<int64_t> swap_to_columns(const Bucket &bucket, Id *indices, EdgeId *edge_id,
                                     Low *lows) {
    const auto width = static_cast<size_t>(bucket.last_target - bucket.first_target);
    std::vector<int64_t> starts(width + 1);
    const auto column_of = [&](int64_t i) {
        return static_cast<Low>(lows[i] - static_cast<Low>(bucket.first_target));
    };
    for (int64_t i = bucket.begin; i < bucket.end; ++i) ++starts[column_of(i)];
    int64_t sum = bucket.begin;
    for (int64_t &start : starts) sum += std::exchange(start, sum);
    std::vector<int64_t> next = starts;
    for (size_t column = 0; column < width; ++column)
        while (next[column] < starts[column + 1]) {
            const int64_t from = next[column];
            const int64_t to = next[column_of(from)]++;
            if (to == from) continue;
            std::swap(indices[from], indices[to]);
            if (edge_id) std::swap(edge_id[from], edge_id[to]);
            std::swap(lows[from], lows[to]);
        }
    return starts;
}

// Sorts a bucket whose edges are in the order of the list, at most so many of them at once, but
// for longer columns.
template <class Id, class EdgeId, class Low>
void sort_bucket(ColumnSorter<Id, EdgeId, Low> &sort, const Bucket &bucket, Id *indices,
                 EdgeId *edge_id, Low *lows, int64_t most) {
    if (bucket.num_edges() <= most)
        return sort({bucket.begin, bucket.end, bucket.first_target, bucket.last_target}, true);
    const auto starts = swap_to_columns(bucket, indices, edge_id, lows);
    for (size_t first = 0; first + 1 < starts.size();) {
        size_t last = first + 1;
        while (last + 1 < starts.size() && starts[last + 1] - starts[first] <= most) ++last;
        sort({starts[first], starts[last], bucket.first_target + static_cast<int64_t>(first),
              bucket.first_target + static_cast<int64_t>(last)},
             false);
        first = last;
    }
}

}  // namespace gnnstore
