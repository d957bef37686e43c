#include "kernels/rows/rows.h"

#include <nanobind/stl/vector.h>

#include "bindings/arrays.h"
#include "bindings/decoding.h"
#include "bindings/storage.h"

using namespace gnnstore;
using namespace nb::literals;

namespace {

void gather(const InputArray &table, const InputArray &ids, const OutputArray &out,
            int64_t num_rows, int64_t row_bytes, int64_t rows_per_page, int64_t page_stride_bytes,
            int num_threads) {
    const RowLayout layout{num_rows, row_bytes, rows_per_page, page_stride_bytes};
    const uint8_t *rows = input_data<uint8_t>(table, "table", "uint8");
    uint8_t *target = output_data<uint8_t>(out, "out", "uint8");
    with_integers(ids, "ids", [&](const auto *values) {
        const GilRelease release;
        gather_rows(rows, length(table), layout, values, length(ids), target, length(out),
                    num_threads);
    });
}

void gather_and_decode(const InputArray &table, const InputArray &ids, const InputArray &scales,
                       const OutputArray &out, int64_t num_rows, int64_t row_bytes,
                       int64_t rows_per_page, int64_t page_stride_bytes, const std::string &dtype,
                       int num_threads) {
    const RowLayout layout{num_rows, row_bytes, rows_per_page, page_stride_bytes};
    const Decoding decoding = decoding_of(scales, dtype);
    const uint8_t *rows = input_data<uint8_t>(table, "table", "uint8");
    uint8_t *target = output_data<uint8_t>(out, "out", "uint8");
    with_integers(ids, "ids", [&](const auto *values) {
        const GilRelease release;
        gather_decoded(rows, length(table), layout, values, length(ids), decoding, target,
                       length(out), num_threads);
    });
}

void decode_all(const InputArray &rows, const InputArray &scales, const OutputArray &out,
                const std::string &dtype, int num_threads) {
    const Decoding decoding = decoding_of(scales, dtype);
    const uint8_t *bytes = input_data<uint8_t>(rows, "rows", "uint8");
    uint8_t *target = output_data<uint8_t>(out, "out", "uint8");
    const GilRelease release;
    decode_rows(bytes, length(rows), decoding, target, length(out), num_threads);
}

void read_rows(nb::handle paths, const std::vector<int64_t> &body_bytes, const OutputArray &out,
               int64_t num_rows, int64_t row_bytes, int64_t rows_per_page,
               int64_t page_stride_bytes, int num_threads) {
    const RowLayout layout{num_rows, row_bytes, rows_per_page, page_stride_bytes};
    const std::vector<std::string> names = fs_paths(paths);
    uint8_t *target = output_data<uint8_t>(out, "out", "uint8");
    const GilRelease release;
    read_pages(names, body_bytes, layout, target, length(out), num_threads);
}

}  // namespace

void bind_rows(nb::module_ &m) {
    m.def("gather_rows", gather, "table"_a.noconvert(), "ids"_a.noconvert(), "out"_a.noconvert(),
          nb::kw_only(), "num_rows"_a, "row_bytes"_a, "rows_per_page"_a, "page_stride_bytes"_a,
          "num_threads"_a = 1);
    m.def("gather_decoded", gather_and_decode, "table"_a.noconvert(), "ids"_a.noconvert(),
          "scales"_a.noconvert(), "out"_a.noconvert(), nb::kw_only(), "num_rows"_a, "row_bytes"_a,
          "rows_per_page"_a, "page_stride_bytes"_a, "dtype"_a, "num_threads"_a = 1);
    m.def("decode_rows", decode_all, "rows"_a.noconvert(), "scales"_a.noconvert(),
          "out"_a.noconvert(), nb::kw_only(), "dtype"_a, "num_threads"_a = 1);
    m.def("read_pages", read_rows, "paths"_a, "body_bytes"_a, "out"_a.noconvert(), nb::kw_only(),
          "num_rows"_a, "row_bytes"_a, "rows_per_page"_a, "page_stride_bytes"_a,
          "num_threads"_a = 1);
}
