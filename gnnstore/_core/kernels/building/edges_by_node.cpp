#include "kernels/building/edges_by_node.h"

#include <algorithm>
#include <string>

#include "kernels/base/errors.h"

namespace gnnstore {

namespace {

[[noreturn]] void refuse_source(int64_t edge, int64_t source, int64_t num_sources) {
    throw out_of_range("edge ", edge, " comes from node ", source, ", outside [0, ", num_sources,
                       ")");
}

[[noreturn]] void refuse_target(int64_t edge, int64_t target, int64_t num_targets) {
    throw invalid("the target of edge ", edge, " is ", target, "; targets must ascend, and be "
                  "below ", num_targets);
}

template <bool HasValues, class Local>
void scatter(const BatchEdges<Local> &edges, const int32_t *col, const LayerEdges &layer) {
    int32_t *const ptr = layer.ptr;
    for (int64_t s = 2; s <= layer.num_sources; ++s) ptr[s] += ptr[s - 1];
    for (int64_t e = 0; e < layer.num_edges; ++e) {
        const int32_t place = ptr[col[e] + 1]++;
        layer.index[place] = static_cast<int32_t>(edges.targets[e]);
        if constexpr (HasValues) layer.values[place] = edges.values[e];
    }
}

}  // namespace

template <class Local>
void edges_by_node(const BatchEdges<Local> &edges, int32_t *crow, int32_t *col,
                   std::span<const LayerEdges> layers) {
    const int64_t num_sources = edges.num_sources, num_targets = edges.num_targets;
    int32_t *const counts = layers[0].ptr;
    std::fill(counts, counts + num_sources + 1, 0);
    // The edges of source s are counted two places on, and summed to where they begin one place on;
    // from there each edge moves its pointer, at last to where the edges of s + 1 begin. A layer
    // has the first edges: its counts are the first layer's at that moment.
    int64_t target = -1;  // pointers up to its own are known
    int64_t e = 0, highest = -1;
    for (size_t k = layers.size(); k-- > 0;) {
        for (; e < layers[k].num_edges; ++e) {
            const auto source = static_cast<int64_t>(edges.sources[e]);
            const auto next = static_cast<int64_t>(edges.targets[e]);
            if (static_cast<uint64_t>(source) >= static_cast<uint64_t>(num_sources))
                refuse_source(e, source, num_sources);
            if (next < std::max<int64_t>(target, 0) || next >= num_targets)
                refuse_target(e, next, num_targets);
            while (target < next) crow[++target] = static_cast<int32_t>(e);
            col[e] = static_cast<int32_t>(source);
            highest = std::max(highest, source);
            if (source + 2 <= num_sources) ++counts[source + 2];
        }
        if (highest >= layers[k].num_sources)
            refuse_source(e - 1, highest, layers[k].num_sources);
        if (k > 0) std::copy_n(counts, layers[k].num_sources + 1, layers[k].ptr);
    }
    while (target < num_targets) crow[++target] = static_cast<int32_t>(edges.num_edges);
    for (const LayerEdges &layer : layers) {
        if (edges.values == nullptr)
            scatter<false>(edges, col, layer);
        else
            scatter<true>(edges, col, layer);
    }
}

template void edges_by_node(const BatchEdges<int32_t> &, int32_t *, int32_t *,
                            std::span<const LayerEdges>);
template void edges_by_node(const BatchEdges<int64_t> &, int32_t *, int32_t *,
                            std::span<const LayerEdges>);

}  // namespace gnnstore
