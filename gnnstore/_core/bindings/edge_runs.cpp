// Sorting edges on disk: packing and sorting runs, merging slices of them.
#include <limits>
#include <optional>

#include "bindings/arrays.h"
#include "bindings/storage.h"
#include "kernels/building/edge_runs.h"

using namespace gnnstore;
using namespace nb::literals;

namespace {

void check_record_bytes(int64_t record_bytes) {
    require(record_bytes == sizeof(NarrowEdge) || record_bytes == sizeof(WideEdge),
            "record_bytes must be 12 or 24, got ", record_bytes);
}

// Calls use(Edge{}) with the type of records of some size.
template <class Use>
int64_t with_records(int64_t record_bytes, const Use &use) {
    check_record_bytes(record_bytes);
    return record_bytes == sizeof(WideEdge) ? use(WideEdge{}) : use(NarrowEdge{});
}

// The records of a buffer of bytes, of which `num_needed` must fit.
template <class Edge>
Edge *records_in(const OutputArray &buffer, const char *name, int64_t num_needed) {
    auto *const data = output_data<uint8_t>(buffer, name, "uint8");
    if (reinterpret_cast<uintptr_t>(data) % alignof(Edge) != 0)
        throw invalid(name, " is not aligned to ", alignof(Edge), " bytes");
    const auto num_records = length(buffer) / static_cast<int64_t>(sizeof(Edge));
    if (num_needed < 0 || num_needed > num_records)
        throw invalid(name, " holds ", num_records, " records, but ", num_needed, " are asked for");
    return reinterpret_cast<Edge *>(data);
}

int64_t pack(const InputArray &sources, const InputArray &targets, const OutputArray &out,
             int64_t record_bytes, int64_t first_record, int64_t first_position,
             bool drop_self_loops) {
    return with_records(record_bytes, [&]<class Edge>(Edge) {
        return with_integers(sources, "sources", [&]<class Id>(const Id *from) {
            const Id *to = input_data<Id>(targets, "targets", "of the dtype of sources");
            const int64_t num_edges = length(sources);
            check_lengths("sources and targets", sources, targets);
            const int64_t end_position =
                checked_add(first_position, num_edges, "the last position");
            require(first_record >= 0 && first_position >= 0 &&
                        end_position <= int64_t{std::numeric_limits<uint32_t>::max()},
                    "a run has positions from 0 to 2^32 - 1");
            Edge *const records =
                records_in<Edge>(out, "out", checked_add(first_record, num_edges, "the end"));
            const GilRelease release;
            return pack_edges(from, to, num_edges, first_position, drop_self_loops,
                              records + first_record);
        });
    });
}

int64_t sort(const OutputArray &records, const OutputArray &scratch, int64_t record_bytes,
             int64_t num_records, bool unique, int num_threads) {
    return with_records(record_bytes, [&]<class Edge>(Edge) {
        Edge *const edges = records_in<Edge>(records, "records", num_records);
        Edge *const other = records_in<Edge>(scratch, "scratch", num_records);
        const GilRelease release;
        sort_edges(edges, other, num_records, num_threads);
        return unique ? drop_repeated_edges(edges, num_records) : num_records;
    });
}

std::vector<RunSlice> slices_of(const InputArray &records, const InputArray &num_records,
                                const InputArray &record_bytes, const InputArray &first_ids) {
    const uint8_t *next = input_data<uint8_t>(records, "records", "uint8");
    const int64_t *counts = input_data<int64_t>(num_records, "num_records", "int64");
    const int64_t *sizes = input_data<int64_t>(record_bytes, "record_bytes", "int64");
    const int64_t *ids = input_data<int64_t>(first_ids, "first_ids", "int64");
    const int64_t num_slices = length(num_records);
    check_lengths("num_records, record_bytes and first_ids", num_records, record_bytes, first_ids);
    int64_t total = 0;
    std::vector<RunSlice> slices;
    for (int64_t i = 0; i < num_slices; ++i) {
        check_record_bytes(sizes[i]);
        require(counts[i] >= 0, "num_records must not be negative, got ", counts[i]);
        slices.push_back({next + total, counts[i], sizes[i] == sizeof(WideEdge), ids[i]});
        total = checked_add(total, checked_multiply(counts[i], sizes[i], "a slice"), "the slices");
        if (total > length(records))
            throw invalid("records must hold all slices, got ", length(records), " bytes");
    }
    return slices;
}

template <class Id, class EdgeId>
nb::tuple merge_as(const std::vector<RunSlice> &slices, const MergeRange &range, bool with_edge_id,
                   bool with_origin) {
    const int64_t capacity = merge_capacity(slices, range);
    const auto sources = pooled_vector<Id>(capacity);
    std::optional<NumpyVector<EdgeId>> edge_ids;
    if (with_edge_id) edge_ids = pooled_vector<EdgeId>(capacity);
    std::optional<NumpyVector<int32_t>> origins;
    if (with_origin) {
        if (capacity > std::numeric_limits<int32_t>::max())
            throw invalid("a range has at most 2^31 - 1 edges");
        origins = pooled_vector<int32_t>(capacity);
    }
    const auto counts = pooled_vector<int64_t>(range.num_columns);
    MergeCounts found;
    {
        const MergeOutput<Id, EdgeId> out{sources.data(), edge_ids ? edge_ids->data() : nullptr,
                                          origins ? origins->data() : nullptr, counts.data()};
        const GilRelease release;
        std::fill_n(out.column_counts, range.num_columns, 0);
        found = merge_runs(slices, range, out);
    }
    return nb::make_tuple(sources, edge_ids ? nb::cast(*edge_ids) : nb::none(),
                          origins ? nb::cast(*origins) : nb::none(), counts, found.num_edges,
                          found.num_added);
}

nb::tuple merge(const InputArray &records, const InputArray &num_records,
                const InputArray &record_bytes, const InputArray &first_ids, int64_t first_column,
                int64_t num_columns, int64_t num_nodes, bool unique, bool skip_first,
                int64_t first_loop, int64_t end_loop, int64_t present_loop, int64_t first_loop_id,
                int id_bytes, int edge_id_bytes, bool with_origin) {
    const auto slices = slices_of(records, num_records, record_bytes, first_ids);
    if (first_column < 0 || num_columns < 0 || num_nodes < 0 || first_loop < 0 ||
        num_nodes > max_nodes || first_column > num_nodes || end_loop > num_nodes)
        throw invalid("columns and loops must be in [0, num_nodes)");
    const MergeRange range{first_column, num_columns, num_nodes,    unique,       skip_first,
                           first_loop,   end_loop,    present_loop, first_loop_id};
    const auto run = [&](auto merge_into) {
        return merge_into(slices, range, edge_id_bytes != 0, with_origin);
    };
    if (id_bytes == 4 && num_nodes > int64_t{std::numeric_limits<int32_t>::max()} + 1)
        throw invalid("ids of so many nodes take 8 bytes");
    if (id_bytes == 4)
        return edge_id_bytes == 4 ? run(merge_as<int32_t, int32_t>)
                                  : run(merge_as<int32_t, int64_t>);
    if (id_bytes != 8) throw invalid("id_bytes must be 4 or 8");
    return edge_id_bytes == 4 ? run(merge_as<int64_t, int32_t>) : run(merge_as<int64_t, int64_t>);
}

nb::tuple count(const InputArray &records, const InputArray &num_records,
                const InputArray &record_bytes, const InputArray &first_ids, int64_t first_column,
                int64_t num_columns, int64_t num_nodes, bool unique, bool skip_first,
                int64_t first_loop, int64_t end_loop, int64_t present_loop) {
    const auto slices = slices_of(records, num_records, record_bytes, first_ids);
    const MergeRange range{first_column, num_columns, num_nodes,    unique, skip_first,
                           first_loop,   end_loop,    present_loop, 0};
    auto found = without_gil([&] {
        return merge_runs<int64_t, int64_t>(slices, range, {nullptr, nullptr, nullptr, nullptr});
    });
    return nb::make_tuple(found.num_edges, found.num_added);
}

}  // namespace

void bind_edge_runs(nb::module_ &m) {
    m.def("pack_edges", pack, "sources"_a.noconvert(), "targets"_a.noconvert(),
          "out"_a.noconvert(), "record_bytes"_a, "first_record"_a, "first_position"_a,
          "drop_self_loops"_a = false);
    m.def("sort_edges", sort, "records"_a.noconvert(), "scratch"_a.noconvert(), "record_bytes"_a,
          "num_records"_a, "unique"_a = false, "num_threads"_a = 1);
    m.def("merge_edge_runs", merge, "records"_a.noconvert(), "num_records"_a.noconvert(),
          "record_bytes"_a.noconvert(), "first_ids"_a.noconvert(), nb::kw_only(),
          "first_column"_a, "num_columns"_a, "num_nodes"_a, "unique"_a = false,
          "skip_first"_a = false, "first_loop"_a = 0, "end_loop"_a = 0, "present_loop"_a = -1,
          "first_loop_id"_a = 0, "id_bytes"_a = 8, "edge_id_bytes"_a = 8, "with_origin"_a = false);
    m.def("count_edge_runs", count, "records"_a.noconvert(), "num_records"_a.noconvert(),
          "record_bytes"_a.noconvert(), "first_ids"_a.noconvert(), nb::kw_only(),
          "first_column"_a, "num_columns"_a, "num_nodes"_a, "unique"_a = false,
          "skip_first"_a = false, "first_loop"_a = 0, "end_loop"_a = 0, "present_loop"_a = -1);
}
