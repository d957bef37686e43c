// The targets of a batch's edges, which ascend, as the number of edges into each node, and back.
#pragma once

#include <cstdint>
#include <vector>

namespace gnnstore {

// Edges into each node up to the last that has some.
template <class Id>
std::vector<int32_t> count_targets(const Id *targets, int64_t num_edges);

// Writes sources, and then targets by edges into each of `num_targets` nodes, to index [2, m].
template <class Source, class Count, class Id>
void expand_edges(const Source *sources, int64_t num_edges, const Count *num_incoming,
                  int64_t num_targets, Id *index);

}  // namespace gnnstore
