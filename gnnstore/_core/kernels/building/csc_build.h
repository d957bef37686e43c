// From a list of edges to compressed sparse columns: the in-neighbours of each node.
#pragma once

#include <cstdint>

namespace gnnstore {

template <class Id>
struct EdgeList {
    const Id *sources;
    const Id *targets;
    int64_t num_edges;
    int64_t num_sources;  // sources are in [0, num_sources)
    int64_t num_targets;  // targets are in [0, num_targets)
};

// Fills indptr [num_targets + 1] with where each target's column begins, indices
// [num_edges] with the sources of its edges, and edge_id [num_edges], unless it is null,
// with their positions in the list. Columns are sorted by (source, position), so the result
// does not depend on the number of threads. An id out of range throws std::out_of_range.
//
// Works in the outputs; beside them 2 bytes per edge (4, if there are more than 2^27 targets)
// and, for each thread, 24 bytes (40, if there are more than 2^32 sources) per edge of the
// longest column that it sorts, or for csc_group_edges() edges, if those are more.
template <class Id, class EdgeId>
void csc_from_coo(const EdgeList<Id> &edges, int64_t *indptr, Id *indices, EdgeId *edge_id,
                  int num_threads);

// How many edges of short columns are sorted at once at most: some buckets are larger than
// others, but none takes memory that matters.
constexpr int64_t csc_group_edges(int64_t num_edges) {
    constexpr int64_t least = 1 << 16;
    return num_edges / 256 > least ? num_edges / 256 : least;
}

}  // namespace gnnstore
