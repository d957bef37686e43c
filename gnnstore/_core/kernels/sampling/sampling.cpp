// Sampling from a graph in memory, or mapped as if it were: the stages of batch_sampler.h, and
// between them random reads of indices.
#include "kernels/sampling/sampling.h"

#include <algorithm>
#include <limits>
#include <string>

#include "kernels/base/errors.h"
#include "kernels/sampling/batch_sampler.h"

namespace gnnstore {
namespace {

template <class Local, class Table>
class MemorySampler {
public:
    MemorySampler(const TypedGraph &graph, const SamplingOptions &options)
        : batch_(graph, options) {}

    SampledBatch run(const std::vector<Seeds> &seeds, bool induced) {
        batch_.add_seeds(seeds);
        for (; batch_.has_hop(); batch_.end_hop()) {
            batch_.begin_hop();
            for (auto &edges : batch_.edges())
                with_width(edges.type().is_wide, [&]<class Index>(Index) { expand<Index>(edges); });
        }
        if (induced)
            for (auto &edges : batch_.edges())
                with_width(edges.type().is_wide,
                           [&]<class Index>(Index) { connect_all<Index>(edges); });
        return batch_.release();
    }

private:
    using Edges = HopEdges<Local, Table>;

    template <class Index>
    void expand(Edges &edges) {
        edges.begin(batch_.hop());
        const int64_t hop_edges = edges.needs_lists() ? edges.choose_in_memory() : edges.choose();
        const PooledArray<Index> neighbors = read_neighbors<Index>(edges, hop_edges);
        edges.relabel(neighbors.data());
    }

    template <class Index>
    static PooledArray<Index> read_neighbors(const Edges &edges, int64_t hop_edges) {
        if (hop_edges == 0) return {};
        PooledArray<Index> found(hop_edges);
        const int64_t *position = edges.positions();
        const auto *indices = static_cast<const Index *>(edges.type().indices);
        Index *neighbors = found.data();
        bool is_outside = false;
        for (int64_t i = 0; i < hop_edges; ++i) {
            __builtin_prefetch(&indices[position[std::min(i + neighbors_distance, hop_edges - 1)]]);
            neighbors[i] = indices[position[i]];
            is_outside |= edges.outside(neighbors[i]);
        }
        if (is_outside) edges.check_neighbors(neighbors, position, hop_edges);
        return found;
    }

    // Hubs make these many times the sampled edges, so they are counted before they are
    // written: the second look-up costs less than memory that grows.
    template <class Index>
    static void connect_all(Edges &edges) {
        const auto *indices = static_cast<const Index *>(edges.type().indices);
        const int64_t num_targets = edges.target_nodes().num_nodes();
        int64_t num_edges = 0;
        for (int64_t i = 0; i < num_targets; ++i) {
            const NeighborList list = edges.list_of(i);
            num_edges += edges.count_inner_edges(list, indices + list.start);
        }
        edges.drop_edges(num_edges);
        for (int64_t i = 0; i < num_targets; ++i) {
            const NeighborList list = edges.list_of(i);
            edges.append_inner_edges(i, list, indices + list.start);
        }
    }

    BatchSampler<Local, Table> batch_;
};

// The low 8 bits of a word of the key of draws are the hop, the others the edge type.
constexpr size_t max_typed_hops = 256;
constexpr uint32_t max_edge_types = (1 << 24) - 1;

void check_edge_type(const EdgeType &edges, const TypedGraph &graph, int64_t largest_local_id) {
    const auto num_types = static_cast<int64_t>(graph.nodes.size());
    if (edges.source < 0 || edges.source >= num_types || edges.target < 0 ||
        edges.target >= num_types)
        throw invalid("edge types must lead from and to one of the ", num_types, " node types");
    for (const int64_t fanout : edges.fanouts) check_fanout(fanout);
    if (edges.fanouts.size() != graph.edges.front().fanouts.size())
        throw invalid("all edge types must have fan-outs for the same number of hops");
    if (edges.number >= max_edge_types)
        throw invalid("the number of an edge type must be below 2^24 - 1, got ", edges.number);
    if ((graph.edges.size() > 1 || edges.number > 0) && edges.fanouts.size() > max_typed_hops)
        throw invalid("with several edge types there may be 256 hops, got ", edges.fanouts.size());
    if (edges.time.timing != Timing::none && edges.weight.is_weighted)
        throw invalid("times and weights exclude each other");
    if (edges.num_src_nodes < 0)
        throw invalid("num_src_nodes must not be negative, got ", edges.num_src_nodes);
    const int64_t num_ids = std::max(edges.num_nodes, edges.num_src_nodes);
    if (num_ids - 1 > largest_local_id)
        throw invalid("the ids of ", num_ids, " nodes do not fit in 32 bits; ask for int64");
}

}  // namespace

void check_sampling(const TypedGraph &graph, const std::vector<Seeds> &seeds,
                    const SamplingOptions &options, int64_t largest_local_id) {
    if (options.disjoint && options.induced)
        throw invalid("disjoint and induced exclude each other");
    require(seeds.size() == graph.nodes.size(), "there must be seeds for each of the ",
            graph.nodes.size(), " node types, if only none");
    require(options.window >= 0, "the window of time must not be negative, got ", options.window);
    bool is_timed = false;
    for (const EdgeType &edges : graph.edges) {
        check_edge_type(edges, graph, largest_local_id);
        is_timed |= edges.time.timing != Timing::none;
    }
    if (!is_timed) return;
    if (!options.disjoint) throw invalid("times need disjoint trees");
    for (const Seeds &own : seeds)
        if (own.count > 0 && own.times == nullptr)
            throw invalid("times of edges or nodes need a time for each seed");
}

bool fits_compact_table(const TypedGraph &graph, const SamplingOptions &options) {
    if (options.disjoint) return false;
    int64_t most = 0;
    for (const NodeType &nodes : graph.nodes) most = std::max(most, nodes.num_nodes);
    for (const EdgeType &edges : graph.edges) most = std::max(most, edges.num_src_nodes);
    return most <= CompactTable::max_nodes;
}

template <class Local>
SampledBatch sample_neighbors(const TypedGraph &graph, const std::vector<Seeds> &seeds,
                              const SamplingOptions &options) {
    check_sampling(graph, seeds, options, std::numeric_limits<Local>::max());
    if (fits_compact_table(graph, options))
        return MemorySampler<Local, CompactTable>(graph, options).run(seeds, options.induced);
    return MemorySampler<Local, WideTable>(graph, options).run(seeds, options.induced);
}

template SampledBatch sample_neighbors<int32_t>(const TypedGraph &, const std::vector<Seeds> &,
                                                const SamplingOptions &);
template SampledBatch sample_neighbors<int64_t>(const TypedGraph &, const std::vector<Seeds> &,
                                                const SamplingOptions &);

}  // namespace gnnstore
