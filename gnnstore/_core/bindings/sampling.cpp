// The sampling group: subgraphs of seed nodes.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <string>
#include <vector>

#include "bindings/arrays.h"
#include "bindings/bindings.h"
#include "bindings/sampled_batch.h"
#include "kernels/sampling/equal_ranges.h"
#include "kernels/sampling/sampling.h"
#include "kernels/sampling/targets.h"

using namespace gnnstore;
using namespace nb::literals;

namespace {

NumpyVector<int64_t> choose_positions(int64_t degree, int64_t k, bool replace, uint64_t seed,
                                      uint64_t epoch, uint64_t batch, uint32_t hop, uint64_t node,
                                      uint32_t tree) {
    require(degree >= 0, "degree must not be negative, got ", degree);
    check_fanout(k);
    const auto positions = pooled_vector<int64_t>(num_chosen(degree, k, replace));
    int64_t *out = positions.data();
    const GilRelease release;
    PositionChooser().choose(DrawKey{seed, epoch, batch}, node, hop, tree, {0, degree}, k, replace,
                             out);
    return positions;
}

nb::tuple add_reverse(const InputArray &edge_index, const InputArray &edge_pos, int64_t num_nodes) {
    return with_edge_index(edge_index, [&]<class Local>(const Local *ends, int64_t num_edges) {
        const int64_t *positions = input_data<int64_t>(edge_pos, "edge_pos", "int64");
        require(length(edge_pos) == num_edges,
                "edge_index must have the shape [2, m] and edge_pos [m]");
        auto edges = without_gil([&] {
            return add_reverse_edges(ends, positions, num_edges, num_nodes);
        });
        const auto num_kept = static_cast<size_t>(edges.num_edges);
        return nb::make_tuple(take_array<Local>(std::move(edges.edge_index), {2, num_kept}),
                              take_array<int64_t>(std::move(edges.edge_pos), {num_kept}));
    });
}

nb::tuple find_equal_ranges(const InputArray &values, const InputArray &begins,
                            const InputArray &ends, const InputArray &wanted) {
    const int64_t *low = input_data<int64_t>(begins, "begins", "int64");
    const int64_t *high = input_data<int64_t>(ends, "ends", "int64");
    const int64_t *numbers = input_data<int64_t>(wanted, "wanted", "int64");
    const int64_t count = length(wanted);
    check_lengths("begins, ends and wanted", begins, ends, wanted);
    // Not of the pool, whose buffers are a huge page at least: these are small, and many at a time.
    std::vector<int64_t> firsts(static_cast<size_t>(count)), lasts(static_cast<size_t>(count));
    with_integers(values, "values", [&](const auto *data) {
        const GilRelease release;
        equal_ranges(data, length(values), low, high, numbers, count, firsts.data(), lasts.data());
    });
    return nb::make_tuple(take_vector(std::move(firsts)), take_vector(std::move(lasts)));
}

NumpyVector<int32_t> incoming(const InputArray &targets) {
    return with_integers(targets, "targets", [&](const auto *ids) {
        const int64_t num_edges = length(targets);
        return take_vector(without_gil([&] { return count_targets(ids, num_edges); }));
    });
}

void expand(const InputArray &sources, const InputArray &num_incoming, const OutputArray &out) {
    require(out.ndim() == 2 && out.shape(0) == 2, "out must have the shape [2, m]");
    const auto num_edges = static_cast<int64_t>(out.shape(1));
    require(num_edges == 0 || (out.stride(0) == num_edges && out.stride(1) == 1),
            "out must be contiguous");
    require(length(sources) == num_edges, "out must have as many columns as there are sources");
    with_integers(sources, "sources", [&](const auto *from) {
        with_integers(num_incoming, "num_incoming", [&](const auto *counts) {
            const auto fill = [&](auto *index) {
                const GilRelease release;
                expand_edges(from, num_edges, counts, length(num_incoming), index);
            };
            if (out.dtype() == nb::dtype<int32_t>()) return fill(static_cast<int32_t *>(out.data()));
            if (out.dtype() == nb::dtype<int64_t>()) return fill(static_cast<int64_t *>(out.data()));
            refuse_dtype("out", "int32 or int64", out.dtype());
        });
    });
}

int64_t read_randomly(const InputArray &table, const InputArray &positions) {
    const int32_t *values = input_data<int32_t>(table, "table", "int32");
    const int64_t *where = input_data<int64_t>(positions, "positions", "int64");
    const GilRelease release;
    return random_reads(values, length(table), where, length(positions));
}

}  // namespace

void bind_sampling(nb::module_ &m) {
    m.def("choose_positions", choose_positions, "degree"_a, "k"_a, "replace"_a, "seed"_a, "epoch"_a,
          "batch"_a, "hop"_a, "node"_a, "tree"_a = 0);
    m.def("add_reverse_edges", add_reverse, "edge_index"_a.noconvert(),
          "edge_pos"_a.noconvert(), "num_nodes"_a);
    m.def("count_targets", incoming, "targets"_a.noconvert());
    m.def("expand_edges", expand, "sources"_a.noconvert(), "num_incoming"_a.noconvert(),
          "out"_a.noconvert());
    m.def("equal_ranges", find_equal_ranges, "values"_a.noconvert(), "begins"_a.noconvert(),
          "ends"_a.noconvert(), "wanted"_a.noconvert());
    m.def("random_reads", read_randomly, "table"_a.noconvert(), "positions"_a.noconvert());
    bind_sampled_graph(m);
    bind_staged_sampling(m);
}
