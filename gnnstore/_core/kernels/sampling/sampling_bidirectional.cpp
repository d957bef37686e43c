// Edges and their reverses, in linear time: local ids are small numbers, so two counting
// sorts (by source, then by target) do what a comparison sort would.
#include <algorithm>
#include <string>

#include "kernels/base/errors.h"
#include "kernels/sampling/sampling.h"

namespace gnnstore {
namespace {

template <class Local>
struct Edge {
    Local source;
    Local target;
    int64_t position;
};

// Copies edges to sorted, ordered by key(edge) < num_keys; equal keys keep their order.
template <class Local, class KeyOf>
void counting_sort(const PooledArray<Edge<Local>> &edges, PooledArray<Edge<Local>> &sorted,
                   int64_t num_edges, PooledArray<int64_t> &next, int64_t num_keys, KeyOf key) {
    std::fill_n(next.data(), num_keys, 0);
    for (int64_t i = 0; i < num_edges; ++i) ++next[key(edges[i])];
    int64_t total = 0;
    for (int64_t k = 0; k < num_keys; ++k) total += std::exchange(next[k], total);
    for (int64_t i = 0; i < num_edges; ++i) sorted[next[key(edges[i])]++] = edges[i];
}

}  // namespace

template <class Local>
SampledEdges add_reverse_edges(const Local *edge_index, const int64_t *edge_pos, int64_t num_edges,
                               int64_t num_nodes) {
    const int64_t num_both = checked_multiply(2, num_edges, "the number of edges");
    PooledArray<Edge<Local>> edges(num_both), sorted(num_both);
    for (int64_t i = 0; i < num_edges; ++i) {
        const Local source = edge_index[i], target = edge_index[num_edges + i];
        if (source < 0 || source >= num_nodes || target < 0 || target >= num_nodes)
            throw out_of_range("edge ", i, " from ", source, " to ", target, " has an end outside "
                               "[0, ", num_nodes, ")");
        edges[i] = {source, target, edge_pos[i]};
        // Behind all sampled edges: the sorts are stable, so of equal edges a sampled one is
        // first, and it is the one that is kept.
        edges[num_edges + i] = {target, source, edge_pos[i]};
    }
    PooledArray<int64_t> next(num_nodes);
    counting_sort(edges, sorted, num_both, next, num_nodes,
                  [](const Edge<Local> &edge) { return edge.source; });
    counting_sort(sorted, edges, num_both, next, num_nodes,
                  [](const Edge<Local> &edge) { return edge.target; });

    int64_t num_kept = 0;
    for (int64_t i = 0; i < num_both; ++i) {
        const bool is_repeated = num_kept > 0 && edges[num_kept - 1].source == edges[i].source &&
                                 edges[num_kept - 1].target == edges[i].target;
        if (!is_repeated) edges[num_kept++] = edges[i];
    }

    PooledArray<Local> kept_index(2 * num_kept);
    PooledArray<int64_t> kept_pos(num_kept);
    for (int64_t i = 0; i < num_kept; ++i) {
        kept_index[i] = edges[i].source;
        kept_index[num_kept + i] = edges[i].target;
        kept_pos[i] = edges[i].position;
    }
    return {std::move(kept_index), std::move(kept_pos), num_kept, {}};
}

template SampledEdges add_reverse_edges(const int32_t *, const int64_t *, int64_t, int64_t);
template SampledEdges add_reverse_edges(const int64_t *, const int64_t *, int64_t, int64_t);

}  // namespace gnnstore
