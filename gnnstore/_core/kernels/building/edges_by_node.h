// A batch's edges by target and by source, as the sparse products of its layers take them.
#pragma once

#include <cstdint>
#include <span>

namespace gnnstore {

template <class Local>
struct BatchEdges {
    const Local *sources, *targets;  // [num_edges], sorted by target
    const float *values;             // [num_edges]; null: there are none
    int64_t num_edges, num_targets, num_sources;
};

struct LayerEdges {
    int64_t num_edges, num_sources;  // the first ones of the batch
    int32_t *ptr;                    // [num_sources + 1]
    int32_t *index;                  // [num_edges]
    float *values;                   // [num_edges], if the batch has any
};

// Fills crow [num_targets + 1] and col [num_edges] with the sources of each target's edges, and the
// arrays of each layer with the targets, and values, of each source's edges, in the order of the
// edges. The first layer has all edges and sources, the others no more than the one before.
//
// Throws std::invalid_argument if targets do not ascend or are not below num_targets, and
// std::out_of_range for a source that is not among the nodes of the batch or of a layer.
template <class Local>
void edges_by_node(const BatchEdges<Local> &edges, int32_t *crow, int32_t *col,
                   std::span<const LayerEdges> layers);

}  // namespace gnnstore
