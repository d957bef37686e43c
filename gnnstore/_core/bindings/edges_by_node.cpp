// A batch's edges in CSR, and the transposes of its layers.
#include "kernels/building/edges_by_node.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include <limits>
#include <optional>
#include <utility>

#include "bindings/arrays.h"
#include "bindings/bindings.h"

using namespace gnnstore;
using namespace nb::literals;

namespace {

// Edges and sources of each layer.
using Layers = std::vector<std::pair<int64_t, int64_t>>;

void check_sizes(const Layers &layers, int64_t num_edges, int64_t num_targets,
                 int64_t num_sources) {
    constexpr int64_t most = std::numeric_limits<int32_t>::max();
    if (num_targets < 0 || num_sources < 0 || num_targets >= most || num_sources >= most ||
        num_edges > most)
        throw invalid("a batch of ", num_targets, " targets, ", num_sources, " sources and ",
                      num_edges, " edges does not fit in int32");
    if (layers.empty() || layers[0] != std::pair{num_edges, num_sources})
        throw invalid("the first layer must have all edges and sources");
    for (size_t k = 1; k < layers.size(); ++k)
        if (layers[k].first < 0 || layers[k].first > layers[k - 1].first ||
            layers[k].second < 0 || layers[k].second > layers[k - 1].second)
            throw invalid("a layer of ", layers[k].first, " edges and ", layers[k].second, " "
                          "sources is no part of the one before");
}

template <class Local>
nb::tuple by_node(const Local *ends, int64_t num_edges, int64_t num_targets, int64_t num_sources,
                  const Layers &layers, const float *values) {
    const BatchEdges<Local> edges{ends, ends + num_edges, values, num_edges, num_targets,
                                  num_sources};
    const auto crow = pooled_vector<int32_t>(num_targets + 1), col = pooled_vector<int32_t>(num_edges);
    nb::list transposes;
    std::vector<LayerEdges> outputs;
    for (const auto &[layer_edges, layer_sources] : layers) {
        const auto ptr = pooled_vector<int32_t>(layer_sources + 1),
                   index = pooled_vector<int32_t>(layer_edges);
        LayerEdges layer{layer_edges, layer_sources, ptr.data(), index.data(), nullptr};
        nb::object weights = nb::none();
        if (values != nullptr) {
            const auto of_layer = pooled_vector<float>(layer_edges);
            layer.values = of_layer.data();
            weights = nb::cast(of_layer);
        }
        transposes.append(nb::make_tuple(ptr, index, weights));
        outputs.push_back(layer);
    }
    without_gil([&] { gnnstore::edges_by_node<Local>(edges, crow.data(), col.data(), outputs); });
    return nb::make_tuple(crow, col, transposes);
}

nb::tuple edges_by_node_of(const InputArray &edge_index, int64_t num_targets, int64_t num_sources,
                           const Layers &layers, const std::optional<InputArray> &values) {
    return with_edge_index(edge_index, [&](const auto *ends, int64_t num_edges) {
        check_sizes(layers, num_edges, num_targets, num_sources);
        const float *weights = values ? input_data<float>(*values, "values", "float32") : nullptr;
        if (values) require(length(*values) == num_edges, "values must have one for each edge");
        return by_node(ends, num_edges, num_targets, num_sources, layers, weights);
    });
}

}  // namespace

void bind_edges_by_node(nb::module_ &m) {
    m.def("edges_by_node", edges_by_node_of, "edge_index"_a.noconvert(), "num_targets"_a,
          "num_sources"_a, "layers"_a, "values"_a.noconvert() = nb::none());
}
