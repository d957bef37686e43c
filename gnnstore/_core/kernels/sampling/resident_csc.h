// The adjacency of the partitions that lie in memory together, from their buckets of edges to
// compressed sparse columns, and back.
//
// A resident graph has partitions 0 ... count - 1, of `rows` nodes each but for the last, which may
// have fewer; node r of partition k has the id k * rows + r. Bucket (i, j) holds the edges from
// partition i to partition j, with ends counted within them, sorted by (target, source, position);
// it is entry j * count + i of `starts`, so that the edges to a partition lie together.
#pragma once

#include <cstdint>

namespace gnnstore {

struct ResidentShape {
    int64_t count;      // partitions
    int64_t rows;       // nodes of a partition
    int64_t num_nodes;  // of all: more than (count - 1) * rows, and at most count * rows

    // Throws std::invalid_argument unless the numbers are sound and ids fit in 31 bits.
    void check() const;
    int64_t rows_of(int64_t partition) const {
        const int64_t left = num_nodes - partition * rows;
        return left < rows ? left : rows;
    }
};

template <class End, class Position>  // const or not
struct BucketsOf {
    const int64_t *starts;  // count * count + 1, of which the last is the number of edges
    End *source, *target;
    Position *position;  // of each edge in the whole graph
};

template <class Position>
using Buckets = BucketsOf<const int32_t, const Position>;
template <class Position>
using MutableBuckets = BucketsOf<int32_t, Position>;

// Fills indptr [num_nodes + 1], indices [E] with the sources of each node's edges, and positions
// [E] with theirs. Columns ascend by (source, position), since buckets do. No edge is compared
// with another of another bucket: edges are counted, and each bucket is read in order.
//
// Throws std::invalid_argument for an edge that is not sound: an end that is not in its partition,
// a position outside [0, num_positions), a bucket that is not sorted. Each thread takes 8 bytes a
// node of a partition.
template <class Position>
void resident_csc(const ResidentShape &shape, const Buckets<Position> &buckets,
                  int64_t num_positions, int64_t *indptr, int32_t *indices, Position *positions,
                  int num_threads);

// Writes the edges between partitions that stay to their buckets of another resident graph, of
// `new_count` partitions: partition k of this one is kept[k] of it, or leaves if that is negative.
// Kept ones ascend. Other buckets of `out` are left as they are.
//
// Throws std::invalid_argument if a bucket of `out` has not as many edges as there are.
template <class Position>
void resident_buckets(const ResidentShape &shape, const int64_t *indptr, const int32_t *indices,
                      const Position *positions, const int64_t *kept, int64_t new_count,
                      const MutableBuckets<Position> &out, int num_threads);

}  // namespace gnnstore
