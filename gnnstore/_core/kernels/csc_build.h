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
// Works in the outputs themselves; beside them each thread needs up to 24 bytes per edge of
// the longest column that it sorts.
template <class Id, class EdgeId>
void csc_from_coo(const EdgeList<Id> &edges, int64_t *indptr, Id *indices, EdgeId *edge_id,
                  int num_threads);

}  // namespace gnnstore
