#include "kernels/sampling/resident_csc.h"

#include <algorithm>
#include <limits>
#include <string>
#include <vector>

#include "kernels/base/errors.h"
#include "kernels/base/parallel.h"

namespace gnnstore {
namespace {

[[noreturn]] void refuse(const std::string &what) { throw invalid(what); }

std::string name_of(int64_t source, int64_t target) {
    return "bucket (" + std::to_string(source) + ", " + std::to_string(target) + ") of the state";
}

void check_starts(const int64_t *starts, int64_t num_buckets) {
    if (starts[0] != 0) refuse("buckets begin at edge " + std::to_string(starts[0]));
    for (int64_t b = 0; b < num_buckets; ++b)
        if (starts[b + 1] < starts[b])
            refuse("bucket " + std::to_string(b) + " of the state ends before it begins");
}

// Whether an edge is sound, and does not come before the one before it.
template <class Position>
struct EdgeCheck {
    int64_t num_sources, num_targets, num_positions;

    bool is_sound(const Buckets<Position> &edges, int64_t e, bool is_first) const {
        const int32_t source = edges.source[e], target = edges.target[e];
        const Position position = edges.position[e];
        const bool is_inside = source >= 0 && source < num_sources && target >= 0 &&
                               target < num_targets && position >= 0 && position < num_positions;
        if (is_first) return is_inside;
        const int32_t last_target = edges.target[e - 1], last_source = edges.source[e - 1];
        const bool follows =
            target != last_target   ? target > last_target
            : source != last_source ? source > last_source
                                    : position > edges.position[e - 1];
        return is_inside && follows;
    }
};

}  // namespace

void ResidentShape::check() const {
    if (count < 1 || rows < 1 || num_nodes < 1 || rows > std::numeric_limits<int32_t>::max() ||
        count > std::numeric_limits<int32_t>::max())
        refuse("a resident graph of " + std::to_string(count) + " partitions of " +
               std::to_string(rows) + " nodes");
    if (num_nodes <= (count - 1) * rows || num_nodes > count * rows)
        refuse(std::to_string(num_nodes) + " nodes do not make " + std::to_string(count) +
               " partitions of " + std::to_string(rows));
    if (num_nodes > int64_t{std::numeric_limits<int32_t>::max()})
        refuse("more than 2^31 - 1 nodes in memory at a time: " + std::to_string(num_nodes));
}

template <class Position>
void resident_csc(const ResidentShape &shape, const Buckets<Position> &buckets,
                  int64_t num_positions, int64_t *indptr, int32_t *indices, Position *positions,
                  int num_threads) {
    check_num_threads(num_threads);
    shape.check();
    const int64_t count = shape.count;
    check_starts(buckets.starts, count * count);
    indptr[0] = 0;
    run_workers(num_threads, count, [&](TaskQueue &queue) {
        std::vector<int64_t> next;
        for (int64_t to; queue.take(to);) {
            const int64_t *starts = buckets.starts + to * count;
            const int64_t num_targets = shape.rows_of(to);
            next.assign(static_cast<size_t>(num_targets), 0);
            for (int64_t from = 0; from < count; ++from) {
                const EdgeCheck<Position> check{shape.rows_of(from), num_targets, num_positions};
                for (int64_t e = starts[from]; e < starts[from + 1]; ++e) {
                    if (!check.is_sound(buckets, e, e == starts[from]))
                        refuse("edge " + std::to_string(e - starts[from]) + " of " +
                               name_of(from, to) +
                               " has an end or a position that is out of range, or does not "
                               "follow the one before it");
                    ++next[static_cast<size_t>(buckets.target[e])];
                }
            }
            int64_t place = starts[0];
            for (int64_t row = 0; row < num_targets; ++row) {
                int64_t &number = next[static_cast<size_t>(row)];
                const int64_t begin = place;
                place += number;
                number = begin;
                indptr[to * shape.rows + row + 1] = place;
            }
            for (int64_t from = 0; from < count; ++from) {
                const auto first = static_cast<int32_t>(from * shape.rows);
                for (int64_t e = starts[from]; e < starts[from + 1]; ++e) {
                    const int64_t at = next[static_cast<size_t>(buckets.target[e])]++;
                    indices[at] = first + buckets.source[e];
                    positions[at] = buckets.position[e];
                }
            }
        }
    });
}

template <class Position>
void resident_buckets(const ResidentShape &shape, const int64_t *indptr, const int32_t *indices,
                      const Position *positions, const int64_t *kept, int64_t new_count,
                      const MutableBuckets<Position> &out, int num_threads) {
    check_num_threads(num_threads);
    shape.check();
    check_starts(out.starts, new_count * new_count);
    for (int64_t k = 0; k < shape.count; ++k)
        if (kept[k] >= new_count) refuse("partition " + std::to_string(k) + " stays nowhere");
    for (int64_t k = 0, next = 0; k < shape.count; ++k) {
        if (kept[k] < 0) continue;
        if (kept[k] < next) refuse("those that stay must ascend");
        next = kept[k] + 1;
    }
    run_workers(num_threads, shape.count, [&](TaskQueue &queue) {
        std::vector<int64_t> next(static_cast<size_t>(new_count));
        for (int64_t to; queue.take(to);) {
            if (kept[to] < 0) continue;
            const int64_t *starts = out.starts + kept[to] * new_count;
            std::copy_n(starts, new_count, next.begin());
            const int64_t first_node = to * shape.rows;
            for (int64_t row = 0; row < shape.rows_of(to); ++row) {
                int64_t from = 0;
                const int64_t node = first_node + row;
                for (int64_t e = indptr[node]; e < indptr[node + 1]; ++e) {
                    while (indices[e] >= (from + 1) * shape.rows) ++from;
                    if (kept[from] < 0) continue;
                    int64_t &at = next[static_cast<size_t>(kept[from])];
                    if (at == starts[kept[from] + 1])
                        refuse(name_of(kept[from], kept[to]) + " has fewer edges than stay");
                    out.source[at] = static_cast<int32_t>(indices[e] - from * shape.rows);
                    out.target[at] = static_cast<int32_t>(row);
                    out.position[at] = positions[e];
                    ++at;
                }
            }
            for (int64_t from = 0; from < shape.count; ++from)
                if (kept[from] >= 0 &&
                    next[static_cast<size_t>(kept[from])] != starts[kept[from] + 1])
                    refuse(name_of(kept[from], kept[to]) + " has more edges than stay");
        }
    });
}

template void resident_csc(const ResidentShape &, const Buckets<int32_t> &, int64_t, int64_t *,
                           int32_t *, int32_t *, int);
template void resident_csc(const ResidentShape &, const Buckets<int64_t> &, int64_t, int64_t *,
                           int32_t *, int64_t *, int);
template void resident_buckets(const ResidentShape &, const int64_t *, const int32_t *,
                               const int32_t *, const int64_t *, int64_t,
                               const MutableBuckets<int32_t> &, int);
template void resident_buckets(const ResidentShape &, const int64_t *, const int32_t *,
                               const int64_t *, const int64_t *, int64_t,
                               const MutableBuckets<int64_t> &, int);

}  // namespace gnnstore
