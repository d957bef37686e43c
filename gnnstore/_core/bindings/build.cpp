#include <nanobind/stl/optional.h>

#include <limits>
#include <optional>

#include "bindings/arrays.h"
#include "bindings/storage.h"
#include "kernels/building/csc_build.h"
#include "kernels/building/edge_buckets.h"
#include "kernels/building/rmat.h"

using namespace gnnstore;
using namespace nb::literals;

namespace {

template <class Id, class EdgeId>
nb::tuple build_csc(const EdgeList<Id> &edges, bool with_edge_id, int num_threads) {
    const auto indptr = pooled_vector<int64_t>(
        checked_add(edges.num_targets, 1, "the length of indptr"));
    const auto indices = pooled_vector<Id>(edges.num_edges);
    std::optional<NumpyVector<EdgeId>> edge_id;
    if (with_edge_id) edge_id = pooled_vector<EdgeId>(edges.num_edges);
    without_gil([&] {
        csc_from_coo(edges, indptr.data(), indices.data(), edge_id ? edge_id->data() : nullptr,
                     num_threads);
    });
    return nb::make_tuple(indptr, indices, edge_id ? nb::cast(*edge_id) : nb::none());
}

nb::tuple csc(const InputArray &src, const InputArray &dst, int64_t num_nodes, int num_threads,
              bool with_edge_id, std::optional<int64_t> num_src_nodes) {
    return with_integers(src, "src", [&]<class Id>(const Id *sources) {
        const Id *targets = input_data<Id>(dst, "dst", "of the dtype of src");
        check_lengths("src and dst", src, dst);
        const EdgeList<Id> edges{sources, targets, length(src), num_src_nodes.value_or(num_nodes),
                                 num_nodes};
        require(edges.num_sources >= 0 && edges.num_targets >= 0, "num_nodes and num_src_nodes "
                "must not be negative, got ", edges.num_targets, " and ", edges.num_sources);
        if (edges.num_edges <= std::numeric_limits<int32_t>::max())
            return build_csc<Id, int32_t>(edges, with_edge_id, num_threads);
        return build_csc<Id, int64_t>(edges, with_edge_id, num_threads);
    });
}

nb::tuple rmat(int64_t first_edge, int64_t num_edges, int scale, const InputArray &probabilities,
               uint64_t seed, int num_threads) {
    require(num_edges >= 0, "num_edges must not be negative, got ", num_edges);
    if (probabilities.dtype() != nb::dtype<double>())
        refuse_dtype("probabilities", "float64", probabilities.dtype());
    if (probabilities.ndim() != 2 || static_cast<int64_t>(probabilities.shape(0)) != scale ||
        probabilities.shape(1) != 4)
        throw invalid("probabilities must have the shape [scale, 4] = [", scale, ", 4]");
    std::vector<double> rows;  // a copy: 4 numbers per level, of any strides
    const auto *values = static_cast<const double *>(probabilities.data());
    for (int64_t level = 0; level < scale; ++level)
        for (int64_t i = 0; i < 4; ++i)
            rows.push_back(values[level * probabilities.stride(0) + i * probabilities.stride(1)]);
    const auto src = pooled_vector<int64_t>(num_edges), dst = pooled_vector<int64_t>(num_edges);
    without_gil([&] {
        rmat_edges(first_edge, num_edges, scale, rows.data(), seed, src.data(), dst.data(),
                   num_threads);
    });
    return nb::make_tuple(src, dst);
}

NumpyVector<int64_t> permute(const InputArray &ids, int scale, uint64_t seed, bool inverse,
                             int num_threads) {
    const int64_t *values = input_data<int64_t>(ids, "ids", "int64");
    const int64_t num_ids = length(ids);
    const auto out = pooled_vector<int64_t>(num_ids);
    without_gil([&] {
        permute_ids(values, num_ids, scale, seed, inverse, out.data(), num_threads);
    });
    return out;
}

// Buckets, and the arrays whose memory they use.
struct PythonBuckets {
    PythonBuckets(int64_t num_nodes, int num_threads) : buckets(num_nodes, num_threads) {}

    void sample(const InputArray &dst) {
        const int32_t *const targets = input_data<int32_t>(dst, "dst", "int32");
        const int64_t num_targets = length(dst);
        const GilRelease release;
        buckets.sample(targets, num_targets);
    }
    void add(const InputArray &src, const InputArray &dst, int64_t first_position) {
        const int32_t *const sources = input_data<int32_t>(src, "src", "int32");
        const int32_t *const targets = input_data<int32_t>(dst, "dst", "int32");
        const int64_t num_edges = length(src);
        check_lengths("src and dst", src, dst);
        const GilRelease release;
        buckets.add(sources, targets, num_edges, first_position);
    }
    void give(const OutputArray &ids) {
        auto *const data = output_data<int32_t>(ids, "ids", "int32");
        given.push_back(ids);
        buckets.give(data, length(ids) * static_cast<int64_t>(sizeof(int32_t)));
    }

    std::vector<OutputArray> given;
    EdgeBuckets buckets;
};

nb::tuple sort_piece(const PythonBuckets &python, int64_t number, bool with_edge_id) {
    const EdgeBuckets &buckets = python.buckets;
    if (number < 0 || number >= buckets.num_pieces())
        throw out_of_range("there is no piece ", number);
    const EdgeBuckets::Piece &piece = buckets.piece(number);
    const auto indptr = pooled_vector<int64_t>(piece.last_target - piece.first_target + 1);
    const auto indices = pooled_vector<int32_t>(piece.end - piece.begin);
    std::optional<NumpyVector<int32_t>> edge_id;
    if (with_edge_id) edge_id = pooled_vector<int32_t>(piece.end - piece.begin);
    without_gil([&] {
        buckets.sort(number, indptr.data(), indices.data(), edge_id ? edge_id->data() : nullptr);
    });
    return nb::make_tuple(indptr, indices, edge_id ? nb::cast(*edge_id) : nb::none());
}

}  // namespace

void bind_build(nb::module_ &m) {
    m.def("csc_from_coo", csc, "src"_a.noconvert(), "dst"_a.noconvert(), "num_nodes"_a,
          "num_threads"_a = 1, "with_edge_id"_a = true, "num_src_nodes"_a = nb::none());
    nb::class_<PythonBuckets>(m, "EdgeBuckets")
        .def(nb::init<int64_t, int>(), "num_nodes"_a, "num_threads"_a = 1)
        .def("sample", &PythonBuckets::sample, "dst"_a.noconvert())
        .def("plan", [](PythonBuckets &self, int64_t n) { return self.buckets.plan(n); },
             "num_edges"_a)
        .def("add", &PythonBuckets::add, "src"_a.noconvert(), "dst"_a.noconvert(),
             "first_position"_a)
        .def("give", &PythonBuckets::give, "ids"_a.noconvert())
        .def("finish", [](PythonBuckets &self) { return self.buckets.finish(); })
        .def_prop_ro("num_pieces",
                     [](const PythonBuckets &self) { return self.buckets.num_pieces(); })
        .def("sort", sort_piece, "piece"_a, "with_edge_id"_a = true);
    m.def("rmat_edges", rmat, "first_edge"_a, "num_edges"_a, "scale"_a,
          "probabilities"_a.noconvert(), "seed"_a, "num_threads"_a = 1);
    m.def("permute_ids", permute, "ids"_a.noconvert(), "scale"_a, "seed"_a, "inverse"_a = false,
          "num_threads"_a = 1);
}
