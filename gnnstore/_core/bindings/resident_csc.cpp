// The adjacency of partitions that lie in memory together.
#include "kernels/sampling/resident_csc.h"

#include "bindings/arrays.h"
#include "bindings/bindings.h"
#include "kernels/base/check_ids.h"

using namespace gnnstore;
using namespace nb::literals;

namespace {

void check_buckets(const InputArray &starts, int64_t count, int64_t num_edges) {
    require(count >= 1 && length(starts) == count * count + 1, "starts must have an entry for each "
            "of ", count, " * ", count, " buckets, and one more");
    const int64_t *values = static_cast<const int64_t *>(starts.data());
    if (values[count * count] != num_edges)
        throw invalid("buckets end at edge ", values[count * count], " of ", num_edges);
}

nb::tuple build(const InputArray &starts, const InputArray &source, const InputArray &target,
                const InputArray &position, int64_t count, int64_t rows, int64_t num_nodes,
                int64_t num_positions, int num_threads) {
    const ResidentShape shape{count, rows, num_nodes};
    shape.check();
    const int64_t *first = input_data<int64_t>(starts, "starts", "int64");
    const int32_t *sources = input_data<int32_t>(source, "source", "int32");
    const int32_t *targets = input_data<int32_t>(target, "target", "int32");
    return with_integers(position, "position", [&]<class Position>(const Position *places) {
        const int64_t num_edges = length(position);
        check_lengths("source, target and position", source, target, position);
        check_buckets(starts, count, num_edges);
        const auto indptr = pooled_vector<int64_t>(num_nodes + 1);
        const auto indices = pooled_vector<int32_t>(num_edges);
        const auto positions = pooled_vector<Position>(num_edges);
        without_gil([&] {
            resident_csc<Position>(shape, {first, sources, targets, places}, num_positions,
                                   indptr.data(), indices.data(), positions.data(), num_threads);
        });
        return nb::make_tuple(indptr, indices, positions);
    });
}

void extract(const InputArray &indptr, const InputArray &indices, const InputArray &positions,
             const InputArray &kept, int64_t rows, const InputArray &starts, int64_t new_count,
             const OutputArray &source, const OutputArray &target, const OutputArray &position,
             int num_threads) {
    const int64_t *columns = input_data<int64_t>(indptr, "indptr", "int64");
    const int32_t *neighbors = input_data<int32_t>(indices, "indices", "int32");
    const int64_t *stays = input_data<int64_t>(kept, "kept", "int64");
    const int64_t *first = input_data<int64_t>(starts, "starts", "int64");
    int32_t *sources = output_data<int32_t>(source, "source", "int32");
    int32_t *targets = output_data<int32_t>(target, "target", "int32");
    const int64_t num_nodes = length(indptr) - 1, num_edges = length(indices);
    const ResidentShape shape{length(kept), rows, num_nodes};
    shape.check();
    check_buckets(starts, new_count, length(position));
    check_lengths("source, target and position", source, target, position);
    check_lengths("indices and positions", indices, positions);
    with_integers(positions, "positions", [&]<class Position>(const Position *places) {
        auto *out = output_data<Position>(position, "position", "of the dtype of positions");
        const GilRelease release;
        for (int64_t v = 0; v < num_nodes; ++v)
            if (columns[v] < 0 || columns[v] > columns[v + 1] || columns[v + 1] > num_edges)
                throw invalid("indptr: the column of node ", v, " is not among the edges");
        check_ids(neighbors, num_edges, num_nodes);
        resident_buckets<Position>(shape, columns, neighbors, places, stays, new_count,
                                   {first, sources, targets, out}, num_threads);
    });
}

}  // namespace

void bind_resident_csc(nb::module_ &m) {
    m.def("resident_csc", build, "starts"_a.noconvert(), "source"_a.noconvert(),
          "target"_a.noconvert(), "position"_a.noconvert(), nb::kw_only(), "count"_a, "rows"_a,
          "num_nodes"_a, "num_positions"_a, "num_threads"_a = 1);
    m.def("resident_buckets", extract, "indptr"_a.noconvert(), "indices"_a.noconvert(),
          "positions"_a.noconvert(), "kept"_a.noconvert(), nb::kw_only(), "rows"_a,
          "starts"_a.noconvert(), "new_count"_a, "source"_a.noconvert(), "target"_a.noconvert(),
          "position"_a.noconvert(), "num_threads"_a = 1);
}
