// Graphs of any number of types, as samplers take them from Python.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings/arrays.h"
#include "bindings/sampled_batch.h"
#include "kernels/sampling/sampling.h"

namespace gnnstore {

// One edge type, and the arrays that it points to.
struct EdgeColumns {
    EdgeType type;
    std::vector<InputArray> arrays;
};

// Ids of the seeds of a node type, the numbers of their trees, and their times.
using SeedArrays =
    std::tuple<InputArray, std::optional<InputArray>, std::optional<InputArray>>;
// By edge type.
using ExcludedByType = std::optional<std::vector<std::optional<ExcludedArrays>>>;

class SampledGraph {
public:
    SampledGraph(const std::vector<std::tuple<std::string, int64_t>> &node_types,
                 const std::vector<EdgeColumns> &edge_types) {
        for (const auto &[name, num_nodes] : node_types) graph_.nodes.push_back({name, num_nodes});
        for (const EdgeColumns &columns : edge_types) {
            graph_.edges.push_back(columns.type);
            arrays_.insert(arrays_.end(), columns.arrays.begin(), columns.arrays.end());
        }
    }

    const TypedGraph &graph() const { return graph_; }

    TypedGraph without(const ExcludedByType &excluded) const {
        TypedGraph graph = graph_;
        if (!excluded) return graph;
        if (excluded->size() != graph.edges.size())
            throw invalid("excluded edges must be given for each edge type, or None");
        for (size_t e = 0; e < graph.edges.size(); ++e)
            graph.edges[e].excluded = excluded_in((*excluded)[e]);
        return graph;
    }

private:
    TypedGraph graph_;
    std::vector<InputArray> arrays_;
};

// In-neighbours of an edge type.
inline const void *ids_in(const InputArray &ids, const char *name, bool is_wide) {
    return with_width(is_wide, [&]<class Index>(Index) -> const void * {
        return input_data<Index>(
            ids, name, sizeof(Index) == 4 ? "int32, as indices are" : "int64, as indices are");
    });
}

inline const void *order_in(const InputArray &order, bool is_wide) {
    if (is_wide) return input_data<uint32_t>(order, "the order by time", "uint32");
    return input_data<uint16_t>(order, "the order by time", "uint16");
}

inline std::vector<Seeds> seeds_in(const std::vector<SeedArrays> &seeds) {
    std::vector<Seeds> found;
    const auto beside = [](const std::optional<InputArray> &values, const char *name,
                           int64_t count) -> const int64_t * {
        if (!values) return nullptr;
        require(length(*values) == count, "there must be one of ", name, " for each seed");
        return input_data<int64_t>(*values, name, "int64");
    };
    for (const auto &[ids, trees, times] : seeds) {
        Seeds of_type;
        of_type.ids = input_data<int64_t>(ids, "seeds", "int64");
        of_type.count = length(ids);
        of_type.trees = beside(trees, "the places", of_type.count);
        of_type.times = beside(times, "the times", of_type.count);
        found.push_back(of_type);
    }
    return found;
}

template <class Local>
nb::tuple batch_tuple(SampledBatch batch, bool is_disjoint) {
    nb::list nodes, edges;
    for (SampledNodes &of_type : batch.nodes)
        nodes.append(nodes_tuple<Local>(std::move(of_type), is_disjoint));
    for (SampledEdges &of_type : batch.edges)
        edges.append(edges_tuple<Local>(std::move(of_type)));
    return nb::make_tuple(nodes, edges);
}

}  // namespace gnnstore
