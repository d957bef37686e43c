// Packing the rows that batches miss, and reading them back.
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <vector>

#include "bindings/arrays.h"
#include "bindings/storage.h"
#include "kernels/pack.h"
#include "kernels/pack_windows.h"
#include "kernels/packed_read.h"

using namespace gnnstore;
using namespace nb::literals;

namespace {

int64_t num_batches_of(const InputArray &offsets, const char *name) {
    if (length(offsets) == 0) throw std::invalid_argument(std::string(name) + " must not be empty");
    return length(offsets) - 1;
}

void expect_length(const InputArray &array, const char *name, int64_t expected) {
    if (length(array) != expected)
        throw std::invalid_argument(std::string(name) + " must have " + std::to_string(expected) +
                                    " entries, got " + std::to_string(length(array)));
}

nb::tuple index_missed(const InputArray &ids, const InputArray &offsets, const InputArray &slots,
                       int64_t num_rows, int num_threads) {
    check_vector(ids, "ids");
    const int64_t *bounds = input_data<int64_t>(offsets, "offsets", "int64");
    const int32_t *places = input_data<int32_t>(slots, "slots", "int32");
    const int64_t num_batches = num_batches_of(offsets, "offsets");
    expect_length(slots, "slots", length(ids));
    check_offsets(bounds, num_batches, length(ids));
    auto begins = pooled_vector<int64_t>(num_batches + 1);
    {
        const GilRelease release;
        count_misses(places, bounds, num_batches, begins.data());
    }
    auto positions = pooled_vector<int32_t>(begins.data()[num_batches]);
    auto counts = pooled_vector<int64_t>(num_batches);
    std::vector<int32_t> repeats;
    with_integers(ids, "ids", [&](const auto *values) {
        using Id = std::remove_const_t<std::remove_pointer_t<decltype(values)>>;
        const GilRelease release;
        repeats = index_misses(Misses<Id>{values, places, length(ids), bounds, num_batches},
                               num_rows, begins.data(), positions.data(), counts.data(),
                               num_threads);
    });
    return nb::make_tuple(positions, begins, counts, take_vector(std::move(repeats)));
}

int64_t least_window(const FileSet &files, int64_t num_rows, int64_t row_bytes,
                     int64_t rows_per_page, int64_t page_stride_bytes, int64_t gap_bytes) {
    const RowLayout layout{num_rows, row_bytes, rows_per_page, page_stride_bytes};
    layout.check();
    return min_window_bytes(files, layout, gap_bytes);
}

nb::dict pack(const FileSet &files, const InputArray &ids, const InputArray &offsets,
              const InputArray &positions, const InputArray &begins, const InputArray &counts,
              nb::handle paths, const std::vector<int64_t> &file_bytes,
              const InputArray &run_files, const InputArray &run_offsets,
              const OutputArray &progress, const std::string &engine, int64_t num_rows,
              int64_t row_bytes, int64_t rows_per_page, int64_t page_stride_bytes,
              int64_t gap_bytes, int64_t num_windows, int64_t window_bytes, int64_t buffer_bytes,
              int64_t num_spare_buffers, int64_t max_indexed_rows, int num_threads, bool grows) {
    const RowLayout layout{num_rows, row_bytes, rows_per_page, page_stride_bytes};
    const std::vector<std::string> names = fs_paths(paths);
    if (names.size() != file_bytes.size())
        throw std::invalid_argument("paths and file_bytes must have the same length");
    const int64_t *bounds = input_data<int64_t>(offsets, "offsets", "int64");
    const int32_t *places = input_data<int32_t>(positions, "positions", "int32");
    const int64_t *first = input_data<int64_t>(begins, "begins", "int64");
    const int64_t *sizes = input_data<int64_t>(counts, "num_rows_of", "int64");
    const int64_t *out_files = input_data<int64_t>(run_files, "run_files", "int64");
    const int64_t *out_offsets = input_data<int64_t>(run_offsets, "run_offsets", "int64");
    int64_t *state = output_data<int64_t>(progress, "progress", "int64");
    const int64_t num_batches = num_batches_of(offsets, "offsets");
    expect_length(begins, "begins", num_batches + 1);
    expect_length(counts, "num_rows_of", num_batches);
    expect_length(run_files, "run_files", num_batches);
    expect_length(run_offsets, "run_offsets", num_batches);
    if (length(progress) != 2) throw std::invalid_argument("progress must have 2 entries");
    check_vector(ids, "ids");
    check_offsets(bounds, num_batches, length(ids));
    check_offsets(first, num_batches, length(positions));
    static_assert(sizeof(PackProgress) == 2 * sizeof(int64_t));
    const PackOptions options{.kind = parse_engine_kind(engine),
                              .num_threads = num_threads,
                              .gap_bytes = gap_bytes,
                              .num_windows = num_windows,
                              .window_bytes = window_bytes,
                              .buffer_bytes = buffer_bytes,
                              .num_spare_buffers = num_spare_buffers,
                              .max_indexed_rows = max_indexed_rows};
    PackCounts result;
    with_integers(ids, "ids", [&](const auto *values) {
        using Id = std::remove_const_t<std::remove_pointer_t<decltype(values)>>;
        const GilRelease release;
        std::vector<std::unique_ptr<PackFile>> outputs;
        for (size_t i = 0; i < names.size(); ++i)
            outputs.push_back(std::make_unique<PackFile>(names[i], file_bytes[i], grows));
        result = pack_rows(files, layout,
                           PackIndex<Id>{values, bounds, places, first, sizes, num_batches},
                           outputs, out_files, out_offsets, options,
                           reinterpret_cast<PackProgress *>(state));
    });
    nb::dict dict;
    dict["reads"] = result.reads;
    dict["bytes_read"] = result.bytes_read;
    dict["writes"] = result.writes;
    dict["bytes_written"] = result.bytes_written;
    dict["rows_packed"] = result.rows_packed;
    dict["passes"] = result.passes;
    return dict;
}

nb::dict read_packed(Reader &reader, const FileSet &files, int64_t file, int64_t offset,
                     const InputArray &positions, const InputArray &repeat_targets,
                     const InputArray &repeat_sources, const OutputArray &out,
                     int64_t row_bytes) {
    PackedRun run{.file = file,
                  .offset = offset,
                  .row_bytes = row_bytes,
                  .positions = input_data<int32_t>(positions, "positions", "int32"),
                  .num_rows = length(positions),
                  .repeat_targets = input_data<int32_t>(repeat_targets, "repeat_targets", "int32"),
                  .repeat_sources = input_data<int32_t>(repeat_sources, "repeat_sources", "int32"),
                  .num_repeats = length(repeat_targets)};
    expect_length(repeat_sources, "repeat_sources", run.num_repeats);
    uint8_t *target = output_data<uint8_t>(out, "out", "uint8");
    ReadCounts counts;
    {
        const GilRelease release;
        counts = read_packed_rows(reader, files, run, target, length(out));
    }
    return as_dict(counts);
}

}  // namespace

void bind_pack(nb::module_ &m) {
    m.def("index_misses", index_missed, "ids"_a.noconvert(), "offsets"_a.noconvert(),
          "slots"_a.noconvert(), nb::kw_only(), "num_rows"_a, "num_threads"_a = 1);
    m.def("min_pack_window_bytes", least_window, "files"_a, nb::kw_only(), "num_rows"_a,
          "row_bytes"_a, "rows_per_page"_a, "page_stride_bytes"_a, "gap_bytes"_a);
    m.def("pack_rows", pack, "files"_a, "ids"_a.noconvert(), "offsets"_a.noconvert(),
          "positions"_a.noconvert(), "begins"_a.noconvert(), "num_rows_of"_a.noconvert(),
          "paths"_a, "file_bytes"_a, "run_files"_a.noconvert(), "run_offsets"_a.noconvert(),
          "progress"_a.noconvert(), nb::kw_only(), "engine"_a, "num_rows"_a, "row_bytes"_a,
          "rows_per_page"_a, "page_stride_bytes"_a, "gap_bytes"_a, "num_windows"_a,
          "window_bytes"_a, "buffer_bytes"_a, "num_spare_buffers"_a, "max_indexed_rows"_a,
          "num_threads"_a = 1, "grows"_a = false);
    m.def("read_packed_rows", read_packed, "reader"_a, "files"_a, "file"_a, "offset"_a,
          "positions"_a.noconvert(), "repeat_targets"_a.noconvert(),
          "repeat_sources"_a.noconvert(), "out"_a.noconvert(), nb::kw_only(), "row_bytes"_a);
}
