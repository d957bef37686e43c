// R-MAT graphs of any size, drawn edge by edge, and the keyed relabelling of their nodes.
#pragma once

#include <cstdint>

namespace gnnstore {

// Largest supported log2 of the number of nodes: ids and counts stay in int64.
inline constexpr int max_scale = 62;

// Edges first_edge .. first_edge + num_edges - 1 of a graph with 2^scale nodes.
// probabilities is [scale, 4]: at level l (most significant bit first) an edge falls into
// quadrant a (source bit 0, target bit 0), b (0, 1), c (1, 0) or d (1, 1).
void rmat_edges(int64_t first_edge, int64_t num_edges, int scale, const double *probabilities,
                uint64_t seed, int64_t *sources, int64_t *targets, int num_threads);

// A bijection of [0, 2^scale) chosen by the seed, or its inverse.
void permute_ids(const int64_t *ids, int64_t num_ids, int scale, uint64_t seed, bool inverse,
                 int64_t *out, int num_threads);

}  // namespace gnnstore
