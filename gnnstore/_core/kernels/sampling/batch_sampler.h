// The stages in which a batch is sampled, apart from where in-neighbours come from: memory
// (sampling.cpp) or a disk (sampling_staged.cpp).
//
// A batch makes some 10^5 random reads; done one after the other, each would wait for memory
// for 100 ns. So a hop runs in stages over its whole frontier, each a loop simple enough to
// prefetch what it will need some iterations later:
//
//   read_lists      indptr of the frontier: where each in-neighbour list starts and ends
//   choose          positions in these lists (Philox; no memory but its own output)
//   (the caller)    indices at the positions
//   relabel         neighbours to local ids, new ones assigned on insertion
//
// On an R-MAT graph of 2^24 nodes and 2.5 * 10^8 edges in memory they take 6, 25, 35 and 31 %
// of the time. Running them in turns on small chunks, so that the draws of one chunk would
// hide the reads of another, was slower by a tenth.
//
// Lists, choice and positions are per edge type (hop_edges.h), ids, tables and trees per node type
// (node_table.h). A hop's frontiers are what the hop before found over all edge types.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "kernels/sampling/hop_edges.h"
#include "kernels/sampling/node_table.h"

namespace gnnstore {

// Throws std::invalid_argument for options that make no sense together, or with the graph.
void check_sampling(const TypedGraph &graph, const std::vector<Seeds> &seeds,
                    const SamplingOptions &options, int64_t largest_local_id);

// Whether the small table of local ids will do.
bool fits_compact_table(const TypedGraph &graph, const SamplingOptions &options);

template <class Local, class Table>
class BatchSampler {
public:
    // The graph and the options must outlive the sampler.
    BatchSampler(const TypedGraph &graph, const SamplingOptions &options) {
        nodes_.reserve(graph.nodes.size());
        for (const NodeType &type : graph.nodes) nodes_.emplace_back(type, options.disjoint);
        edges_.reserve(graph.edges.size());
        for (const EdgeType &type : graph.edges) {
            edges_.emplace_back(type, options, seed_times_, nodes_[static_cast<size_t>(type.source)],
                                nodes_[static_cast<size_t>(type.target)]);
            num_hops_ = type.fanouts.size();
        }
    }
    BatchSampler(const BatchSampler &) = delete;  // edges refer to nodes

    void add_seeds(const std::vector<Seeds> &seeds) {
        int64_t num_trees = 0, first_tree = 0;
        for (const Seeds &of_type : seeds) num_trees += of_type.count;
        for (size_t i = 0; i < nodes_.size(); ++i) {
            const Seeds &own = seeds[i];
            nodes_[i].add_seeds(own, first_tree, num_trees);
            if (own.times != nullptr) {
                seed_times_.resize(static_cast<size_t>(num_trees));
                for (int64_t k = 0; k < own.count; ++k)
                    seed_times_[nodes_[i].tree_of(k)] = own.times[k];
            }
            first_tree += own.count;
        }
    }

    std::vector<HopEdges<Local, Table>> &edges() { return edges_; }

    bool has_hop() const { return hop_ < num_hops_; }
    size_t hop() const { return hop_; }
    void begin_hop() {
        for (auto &nodes : nodes_) nodes.begin_hop();
    }
    void end_hop() {
        for (auto &nodes : nodes_) nodes.end_hop();
        ++hop_;
    }

    void drop_tables() {
        for (auto &nodes : nodes_) nodes.drop_table();
    }

    SampledBatch release() {
        SampledBatch batch;
        for (auto &nodes : nodes_) batch.nodes.push_back(nodes.release());
        for (auto &edges : edges_) batch.edges.push_back(edges.release());
        return batch;
    }

private:
    std::vector<int64_t> seed_times_;  // by tree, if there are times
    std::vector<NodeTable<Local, Table>> nodes_;
    std::vector<HopEdges<Local, Table>> edges_;
    size_t num_hops_ = 0, hop_ = 0;  // the one that is drawn next, or being drawn
};

}  // namespace gnnstore
