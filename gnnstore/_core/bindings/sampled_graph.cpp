// Graphs of any number of types, and sampling from those in memory.
#include "bindings/sampled_graph.h"

using namespace gnnstore;
using namespace nb::literals;

namespace {

EdgeColumns edge_columns(const std::string &name, int64_t source, int64_t target, uint32_t number,
                         const InputArray &indptr, const std::optional<InputArray> &indices,
                         std::vector<int64_t> fanouts, std::optional<int64_t> num_src_nodes,
                         int64_t num_edges, const std::string &indices_dtype,
                         const std::optional<std::string> &timing,
                         const std::optional<InputArray> &order, const std::string &order_dtype,
                         const std::optional<InputArray> &times, bool weighted,
                         const std::optional<InputArray> &weight_sums,
                         const std::optional<InputArray> &draw_ids) {
    EdgeColumns columns;
    columns.arrays.push_back(indptr);
    EdgeType &type = columns.type;
    if (indices) {
        columns.arrays.push_back(*indices);
        num_edges = length(*indices);
        with_integers(*indices, "indices", [&]<class Index>(const Index *neighbors) {
            type.indices = neighbors;
            type.is_wide = sizeof(Index) == 8;
        });
    } else {
        require(num_edges >= 0, "num_edges must not be negative, got ", num_edges);
        with_integer_dtype("indices_dtype", indices_dtype,
                           [&]<class Index>(Index) { type.is_wide = sizeof(Index) == 8; });
    }
    static_cast<ColumnStarts &>(type) = columns_of(indptr, num_edges, num_src_nodes);
    type.name = name;
    type.source = source;
    type.target = target;
    type.number = number;
    type.fanouts = std::move(fanouts);
    const auto keep = [&](const InputArray &array, const char *what, int64_t expected) {
        columns.arrays.push_back(array);
        if (length(array) != expected)
            throw invalid(what, " must have ", expected, " elements, got ", length(array));
    };
    if (timing) {
        if (*timing != "edges" && *timing != "sources")
            throw invalid("timing must be 'edges' or 'sources', got '", *timing, "'");
        const bool of_edges = *timing == "edges";
        type.time.timing = of_edges ? Timing::edges : Timing::sources;
        type.time.is_wide =
            order ? order->dtype() == nb::dtype<uint32_t>() : order_dtype == "uint32";
        if (order) {
            keep(*order, "the order by time", num_edges);
            type.time.order = order_in(*order, type.time.is_wide);
        }
        if (times) {
            keep(*times, "times", of_edges ? num_edges : type.num_src_nodes);
            type.time.times = input_data<int64_t>(*times, "times", "int64");
        }
        if (!times && !of_edges) throw invalid("times of sources must be in memory");
    }
    type.weight.is_weighted = weighted;
    if (weight_sums) {
        keep(*weight_sums, "the sums of weights", num_edges);
        type.weight.sums = input_data<uint64_t>(*weight_sums, "the sums of weights", "uint64");
    }
    if (draw_ids) {
        keep(*draw_ids, "the ids that key draws", type.num_nodes);
        with_integers(*draw_ids, "the ids that key draws", [&]<class Index>(const Index *ids) {
            type.draw_ids = ids;
            type.are_draw_ids_wide = sizeof(Index) == 8;
        });
    }
    return columns;
}

bool is_in_memory(const EdgeType &edges) {
    if (edges.indices == nullptr) return false;
    if (edges.weight.is_weighted && edges.weight.sums == nullptr) return false;
    return edges.time.timing == Timing::none ||
           (edges.time.order != nullptr && edges.time.times != nullptr);
}

nb::tuple sample(const SampledGraph &graph, const std::vector<SeedArrays> &seeds, uint64_t seed,
                 uint64_t epoch, uint64_t batch, bool replace, bool disjoint, bool induced,
                 bool latest, int64_t window, const std::string &index_dtype,
                 const ExcludedByType &excluded) {
    const TypedGraph sampled = graph.without(excluded);
    for (const EdgeType &edges : sampled.edges)
        if (!is_in_memory(edges) && edges.num_edges > 0)
            throw invalid("arrays that are not in memory need a StagedBatch");
    const std::vector<Seeds> seed_nodes = seeds_in(seeds);
    const SamplingOptions options{
        replace, disjoint, induced, DrawKey{seed, epoch, batch}, latest, window};
    return with_integer_dtype("index_dtype", index_dtype, [&]<class Local>(Local) {
        auto found = without_gil([&] {
            return sample_neighbors<Local>(sampled, seed_nodes, options);
        });
        return batch_tuple<Local>(std::move(found), disjoint);
    });
}

}  // namespace

void bind_sampled_graph(nb::module_ &m) {
    nb::class_<EdgeColumns>(m, "EdgeColumns")
        .def(nb::new_(&edge_columns), "name"_a, "source"_a, "target"_a, "number"_a,
             "indptr"_a.noconvert(), "indices"_a.noconvert().none(), "fanouts"_a, nb::kw_only(),
             "num_src_nodes"_a = nb::none(), "num_edges"_a = 0, "indices_dtype"_a = "int64",
             "timing"_a = nb::none(), "order"_a.noconvert() = nb::none(), "order_dtype"_a = "uint32",
             "times"_a.noconvert() = nb::none(), "weighted"_a = false,
             "weight_sums"_a.noconvert() = nb::none(), "draw_ids"_a.noconvert() = nb::none());
    nb::class_<SampledGraph>(m, "SampledGraph")
        .def(nb::init<const std::vector<std::tuple<std::string, int64_t>> &,
                      const std::vector<EdgeColumns> &>(),
             "node_types"_a, "edge_types"_a)
        .def("sample", sample, "seeds"_a.noconvert(), nb::kw_only(), "seed"_a, "epoch"_a, "batch"_a,
             "replace"_a = false, "disjoint"_a = false, "induced"_a = false, "latest"_a = false,
             "window"_a = 0, "index_dtype"_a = "int64", "excluded"_a = nb::none());
}
