// A batch's edges by target and by source, as the sparse products of its layers take them.
#pragma once

#include <cstdint>

namespace gnnstore {

struct LayerEdges {
    int64_t num_edges, num_sources;  // the first ones of the batch
    int32_t *ptr;                    // [num_sources + 1]
    int32_t *index;                  // [num_edges]
    float *values;                   // [num_edges]; null: there are none
};

// Fills crow [num_targets + 1] and col [num_edges] with the sources of each target's edges, which
// are sorted by target. Throws std::invalid_argument if they are not, or if a target is not below
// num_targets, and std::out_of_range for a source that is not below num_sources.
template <class Local>
void edges_by_target(const Local *sources, const Local *targets, int64_t num_edges,
                     int64_t num_targets, int64_t num_sources, int32_t *crow, int32_t *col);

// Fills a layer's arrays with the targets of each source's edges, in the order of the edges; col is
// what edges_by_target has filled. Throws std::out_of_range for a source that is not among those of the layer.
template <class Local>
void edges_by_source(const int32_t *col, const Local *targets, const float *values,
                     const LayerEdges &layer);

}  // namespace gnnstore
