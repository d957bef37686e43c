// Graphs of any number of types, and sampling from those in memory.
#include "bindings/sampled_graph.h"

using namespace gnnstore;
using namespace nb::literals;

namespace {

EdgeColumns edge_columns(const std::string &name, int64_t source, int64_t target, uint32_t number,
                         const InputArray &indptr, const std::optional<InputArray> &indices,
                         std::vector<int64_t> fanouts, std::optional<int64_t> num_src_nodes,
                         int64_t num_edges, const std::string &indices_dtype) {
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
        if (num_edges < 0)
            throw std::invalid_argument("num_edges must not be negative, got " +
                                        std::to_string(num_edges));
        with_integer_dtype("indices_dtype", indices_dtype,
                           [&]<class Index>(Index) { type.is_wide = sizeof(Index) == 8; });
    }
    static_cast<ColumnStarts &>(type) = columns_of(indptr, num_edges, num_src_nodes);
    type.name = name;
    type.source = source;
    type.target = target;
    type.number = number;
    type.fanouts = std::move(fanouts);
    return columns;
}

nb::tuple sample(const SampledGraph &graph, const std::vector<SeedArrays> &seeds, uint64_t seed,
                 uint64_t epoch, uint64_t batch, bool replace, bool disjoint, bool induced,
                 const std::string &index_dtype, const ExcludedByType &excluded) {
    const TypedGraph sampled = graph.without(excluded);
    for (const EdgeType &edges : sampled.edges)
        if (edges.indices == nullptr && edges.num_edges > 0)
            throw std::invalid_argument("in-neighbours that are not in memory need a StagedBatch");
    const std::vector<Seeds> seed_nodes = seeds_in(seeds);
    const SamplingOptions options{replace, disjoint, induced, DrawKey{seed, epoch, batch}};
    return with_integer_dtype("index_dtype", index_dtype, [&]<class Local>(Local) {
        SampledBatch found;
        {
            const GilRelease release;
            found = sample_neighbors<Local>(sampled, seed_nodes, options);
        }
        return batch_tuple<Local>(std::move(found), disjoint);
    });
}

}  // namespace

void bind_sampled_graph(nb::module_ &m) {
    nb::class_<EdgeColumns>(m, "EdgeColumns")
        .def(nb::new_(&edge_columns), "name"_a, "source"_a, "target"_a, "number"_a,
             "indptr"_a.noconvert(), "indices"_a.noconvert().none(), "fanouts"_a, nb::kw_only(),
             "num_src_nodes"_a = nb::none(), "num_edges"_a = 0, "indices_dtype"_a = "int64");
    nb::class_<SampledGraph>(m, "SampledGraph")
        .def(nb::init<const std::vector<std::tuple<std::string, int64_t>> &,
                      const std::vector<EdgeColumns> &>(),
             "node_types"_a, "edge_types"_a)
        .def("sample", sample, "seeds"_a.noconvert(), nb::kw_only(), "seed"_a, "epoch"_a, "batch"_a,
             "replace"_a = false, "disjoint"_a = false, "induced"_a = false,
             "index_dtype"_a = "int64", "excluded"_a = nb::none());
}
