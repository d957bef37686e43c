#include "kernels/sampling/edges_by_node.h"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "kernels/base/check_ids.h"

namespace gnnstore {

template <class Local>
void edges_by_target(const Local *sources, const Local *targets, int64_t num_edges,
                     int64_t num_targets, int64_t num_sources, int32_t *crow, int32_t *col) {
    check_ids(sources, num_edges, num_sources);
    for (int64_t e = 0; e < num_edges; ++e) col[e] = static_cast<int32_t>(sources[e]);
    int64_t target = -1;  // pointers up to its own are known
    for (int64_t e = 0; e < num_edges; ++e) {
        const auto next = static_cast<int64_t>(targets[e]);
        if (next < target || next < 0 || next >= num_targets)
            throw std::invalid_argument(
                "the target of edge " + std::to_string(e) + " is " + std::to_string(next) +
                "; targets must ascend, and be below " + std::to_string(num_targets));
        while (target < next) crow[++target] = static_cast<int32_t>(e);
    }
    while (target < num_targets) crow[++target] = static_cast<int32_t>(num_edges);
}

template <class Local>
void edges_by_source(const int32_t *col, const Local *targets, const float *values,
                     const LayerEdges &layer) {
    const int64_t num_edges = layer.num_edges, num_sources = layer.num_sources;
    int32_t *const ptr = layer.ptr;
    std::fill(ptr, ptr + num_sources + 1, 0);
    // The edges of source s are counted two places on, and summed to where they begin one place on;
    // from there each edge moves its pointer, at last to where the edges of s + 1 begin.
    for (int64_t e = 0; e < num_edges; ++e) {
        const int64_t place = int64_t{col[e]} + 2;
        if (place <= num_sources)
            ++ptr[place];
        else if (place > num_sources + 1)
            throw std::out_of_range("edge " + std::to_string(e) + " of a layer of " +
                                    std::to_string(num_sources) + " sources comes from node " +
                                    std::to_string(col[e]));
    }
    for (int64_t s = 2; s <= num_sources; ++s) ptr[s] += ptr[s - 1];
    for (int64_t e = 0; e < num_edges; ++e) {
        const int32_t place = ptr[col[e] + 1]++;
        layer.index[place] = static_cast<int32_t>(targets[e]);
        if (values != nullptr) layer.values[place] = values[e];
    }
}

template void edges_by_target(const int32_t *, const int32_t *, int64_t, int64_t, int64_t,
                              int32_t *, int32_t *);
template void edges_by_target(const int64_t *, const int64_t *, int64_t, int64_t, int64_t,
                              int32_t *, int32_t *);
template void edges_by_source(const int32_t *, const int32_t *, const float *,
                              const LayerEdges &);
template void edges_by_source(const int32_t *, const int64_t *, const float *,
                              const LayerEdges &);

}  // namespace gnnstore
