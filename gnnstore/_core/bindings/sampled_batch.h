// Conversions that both ways of sampling share: from arguments that describe a graph, and to the
// tuple that is returned.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings/arrays.h"
#include "kernels/sampling/sampling.h"

void bind_sampled_graph(nanobind::module_ &m);
void bind_staged_sampling(nanobind::module_ &m);

namespace gnnstore {

// A batch's buffer as an array; it goes back to the pool with the array's last view.
template <class T>
nb::object take_array(PooledBuffer buffer, std::vector<size_t> shape) {
    if (buffer.raw() == nullptr) buffer = PooledBuffer(0);
    auto owner = std::make_unique<PooledBuffer>(std::move(buffer));
    void *data = owner->raw();
    const nb::capsule capsule(owner.get(),
                              [](void *p) noexcept { delete static_cast<PooledBuffer *>(p); });
    owner.release();
    return nb::cast(nb::ndarray<nb::numpy, T>(data, shape.size(), shape.data(), capsule));
}

// One node type: ids, trees or None, nodes by hop.
template <class Local>
nb::tuple nodes_tuple(SampledNodes nodes, bool is_disjoint) {
    const auto num_nodes = static_cast<size_t>(nodes.num_nodes);
    return nb::make_tuple(
        take_array<Local>(std::move(nodes.n_id), {num_nodes}),
        is_disjoint ? take_array<int64_t>(std::move(nodes.tree), {num_nodes}) : nb::none(),
        nodes.by_hop);
}

// One edge type: local ids, positions, edges by hop.
template <class Local>
nb::tuple edges_tuple(SampledEdges edges) {
    const auto num_edges = static_cast<size_t>(edges.num_edges);
    return nb::make_tuple(take_array<Local>(std::move(edges.edge_index), {2, num_edges}),
                          take_array<int64_t>(std::move(edges.edge_pos), {num_edges}),
                          edges.by_hop);
}

// Nodes, begins, ends; see ExcludedEdges.
using ExcludedArrays = std::tuple<InputArray, InputArray, InputArray>;

inline ExcludedEdges excluded_in(const std::optional<ExcludedArrays> &arrays) {
    if (!arrays) return {};
    const auto &[nodes, begins, ends] = *arrays;
    if (length(nodes) != length(begins) || length(nodes) != length(ends))
        throw invalid("excluded edges: nodes, begins and ends must be of one length");
    return {input_data<int64_t>(nodes, "the excluded edges' nodes", "int64"),
            input_data<int64_t>(begins, "the excluded edges' begins", "int64"),
            input_data<int64_t>(ends, "the excluded edges' ends", "int64"), length(nodes)};
}

// Calls use(Integer{}) with the type that an argument names.
template <class Use>
auto with_integer_dtype(const char *name, const std::string &dtype, const Use &use) {
    if (dtype == "int64") return use(int64_t{});
    if (dtype == "int32") return use(int32_t{});
    throw invalid(name, " must be 'int64' or 'int32', got '", dtype, "'");
}

inline ColumnStarts columns_of(const InputArray &indptr, int64_t num_edges,
                               std::optional<int64_t> num_src_nodes) {
    const int64_t *starts = input_data<int64_t>(indptr, "indptr", "int64");
    if (length(indptr) == 0)
        throw invalid("indptr must have one element more than there are nodes, got no element");
    const int64_t num_nodes = length(indptr) - 1;
    return {starts, num_nodes, num_edges, num_src_nodes.value_or(num_nodes)};
}

}  // namespace gnnstore
