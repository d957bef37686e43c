// Neighbour sampling: from seed nodes, hop by hop, to a subgraph with local ids.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/base/pooled_array.h"
#include "kernels/sampling/excluded_edges.h"
#include "kernels/sampling/sampling_draws.h"

namespace gnnstore {

// A graph by columns: the in-neighbours of v stand at positions indptr[v] ... indptr[v + 1] - 1.
// Nothing in it is trusted; what a batch touches is checked.
struct ColumnStarts {
    const int64_t *indptr = nullptr;  // num_nodes + 1
    int64_t num_nodes = 0;
    int64_t num_edges = 0;
    int64_t num_src_nodes = 0;  // in-neighbours are ids below it
};

// What restricts an edge type's in-neighbours by time. Arrays may be null if they are not in memory,
// but for the times of sources.
enum class Timing { none, edges, sources };
struct TimeColumns {
    Timing timing = Timing::none;
    bool is_wide = false;            // whether the order is uint32; else uint16
    const void *order = nullptr;     // num_edges places in their lists, by time
    const int64_t *times = nullptr;  // of the edges, num_edges, or of the sources, num_src_nodes
};

// What an edge type's in-neighbours are drawn in proportion to.
struct WeightColumn {
    bool is_weighted = false;
    const uint64_t *sums = nullptr;  // num_edges: inclusive sums of weights along each list
};

// One edge type of a graph, and how a batch samples it.
struct EdgeType : ColumnStarts {
    std::string name;                // for messages; empty if it is the only one
    int64_t source = 0, target = 0;  // numbers of its node types
    uint32_t number = 0;             // in the key of its draws
    bool is_wide = false;            // whether in-neighbours are int64; else int32
    const void *indices = nullptr;   // num_edges in-neighbours; null: they are not in memory
    // num_nodes ids that key the draws of target nodes; null: their own.
    const void *draw_ids = nullptr;
    bool are_draw_ids_wide = false;  // int64; else int32
    std::vector<int64_t> fanouts;    // one a hop; -1 takes all in-neighbours
    ExcludedEdges excluded;
    TimeColumns time;
    WeightColumn weight;
};

struct NodeType {
    std::string name;
    int64_t num_nodes = 0;
};

struct TypedGraph {
    std::vector<NodeType> nodes;
    std::vector<EdgeType> edges;
};

struct SamplingOptions {
    bool replace = false;
    bool disjoint = false;  // one tree a seed: a node occurs once in each tree it is found in
    bool induced = false;   // all edges between the sampled nodes, not only the sampled edges
    DrawKey key;
    bool latest = false;  // by time, the latest in-neighbours; else any of those allowed
    int64_t window = 0;   // the times allowed are (t - window, t] for a seed of time t; 0: up to t
};

// The seeds of one node type.
struct Seeds {
    const int64_t *ids = nullptr;
    int64_t count = 0;
    const int64_t *trees = nullptr;  // their numbers; null: counted over the types
    const int64_t *times = nullptr;  // needed if an edge type has times
};

// Calls use(Integer{}) with the type of ids.
template <class Use>
decltype(auto) with_width(bool is_wide, const Use &use) {
    if (is_wide) return use(int64_t{});
    return use(int32_t{});
}

// One batch. Elements are of type Local except where said.
struct SampledNodes {
    PooledBuffer n_id;  // num_nodes node ids, seeds first
    PooledBuffer tree;  // num_nodes numbers of trees, int64; only if disjoint
    int64_t num_nodes = 0;
    std::vector<int64_t> by_hop;  // the seeds, then the nodes new in each hop
};
struct SampledEdges {
    PooledBuffer edge_index;  // [2, num_edges] local ids: sources, then targets
    PooledBuffer edge_pos;    // num_edges positions in indices, int64
    int64_t num_edges = 0;
    std::vector<int64_t> by_hop;  // the edges drawn in each hop
};
struct SampledBatch {
    std::vector<SampledNodes> nodes;  // by type
    std::vector<SampledEdges> edges;
};

// Samples a batch. A hop expands the nodes that the hop before found first (hop 0: the
// seeds), each once, along each edge type in turn. Repeated seeds keep their places, and each is
// expanded at its own; as a neighbour such a node has the local id of its first place.
//
// Local is int32_t or int64_t. Throws std::out_of_range for a seed that is not a node,
// std::invalid_argument for a corrupt graph or options that make no sense, and
// std::overflow_error for a batch too large to be numbered. Memory is proportional to the
// batch. Any number of threads may sample from one graph.
template <class Local>
SampledBatch sample_neighbors(const TypedGraph &graph, const std::vector<Seeds> &seeds,
                              const SamplingOptions &options);

// The union of the edges of a batch with their reverses, each (source, target) once, sorted
// by target, then source. An edge that was sampled keeps its own position; one that only its
// reverse stands for gets the position of the reverse.
template <class Local>
SampledEdges add_reverse_edges(const Local *edge_index, const int64_t *edge_pos, int64_t num_edges,
                               int64_t num_nodes);

// The sum of table[positions[i]], read one after the other by a plain loop: what sampling
// from memory is measured against.
int64_t random_reads(const int32_t *table, int64_t table_size, const int64_t *positions,
                     int64_t num_positions);

}  // namespace gnnstore
