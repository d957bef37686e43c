// Packing the rows that batches miss, and reading them back.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bindings/arrays.h"
#include "bindings/storage.h"
#include "kernels/files/spill_file.h"
#include "kernels/packing/pack.h"
#include "kernels/packing/pack_index.h"
#include "kernels/packing/pack_ranges.h"
#include "kernels/packing/packed_read.h"

using namespace gnnstore;
using namespace nb::literals;

namespace {

void expect_length(const InputArray &array, const char *name, int64_t expected) {
    if (length(array) != expected)
        throw invalid(name, " must have ", expected, " entries, got ", length(array));
}

nb::tuple sort_missed(const InputArray &ids, const InputArray &slots, const OutputArray &rows,
                      const OutputArray &positions, int64_t num_rows) {
    check_vector(ids, "ids");
    const int32_t *places = input_data<int32_t>(slots, "slots", "int32");
    expect_length(slots, "slots", length(ids));
    int32_t *first = output_data<int32_t>(positions, "positions", "int32");
    check_lengths("rows and positions", rows, positions);
    SortedMisses found;
    with_integers(ids, "ids", [&](const auto *values) {
        using Id = std::remove_const_t<std::remove_pointer_t<decltype(values)>>;
        Id *sorted = output_data<Id>(rows, "rows", "of the ids' dtype");
        const GilRelease release;
        found = sort_misses(values, places, length(ids), num_rows, sorted, first, length(rows));
    });
    return nb::make_tuple(found.num_rows, take_vector(std::move(found.repeat_targets)),
                          take_vector(std::move(found.repeat_sources)));
}

int64_t least_window(const FileSet &files, int64_t num_rows, int64_t row_bytes,
                     int64_t rows_per_page, int64_t page_stride_bytes, int64_t gap_bytes) {
    const RowLayout layout{num_rows, row_bytes, rows_per_page, page_stride_bytes};
    layout.check();
    return min_window_bytes(files, layout, gap_bytes);
}

// The rows of batch i are rows[begins[i]] to rows[begins[i] + counts[i] - 1].
template <class Id>
SortedRows<Id> sorted_rows(const Id *rows, int64_t num_rows, const InputArray &begins,
                           const InputArray &counts) {
    const int64_t *first = input_data<int64_t>(begins, "begins", "int64");
    const int64_t *sizes = input_data<int64_t>(counts, "num_rows_of", "int64");
    expect_length(counts, "num_rows_of", length(begins));
    SortedRows<Id> sorted{rows, {}, {}};
    for (int64_t i = 0; i < length(begins); ++i) {
        if (first[i] < 0 || first[i] > num_rows || sizes[i] < 0 || sizes[i] > num_rows - first[i])
            throw invalid("batch ", i, " has ", sizes[i], " rows from row ", first[i], " on, but "
                          "there are ", num_rows);
        sorted.begins.push_back(first[i]);
        sorted.ends.push_back(first[i] + sizes[i]);
    }
    return sorted;
}

// Everything about packing a table but the rows that are missed.
struct Packing {
    const FileSet &files;
    RowLayout layout;
    std::vector<std::string> names;
    const std::vector<int64_t> &file_bytes;
    const int64_t *chunk_files, *chunk_offsets;
    uint32_t *crcs;
    int64_t num_crcs;
    PackProgress *progress;
    PackOptions options;
    bool grows;

    Packing(const FileSet &table, const RowLayout &rows, nb::handle paths,
            const std::vector<int64_t> &sizes, const InputArray &files_of_chunks,
            const InputArray &offsets_of_chunks, const OutputArray &crcs_of_pieces,
            const OutputArray &state, int64_t num_batches, const PackOptions &given,
            bool are_there)
        : files(table),
          layout(rows),
          names(fs_paths(paths)),
          file_bytes(sizes),
          chunk_files(input_data<int64_t>(files_of_chunks, "chunk_files", "int64")),
          chunk_offsets(input_data<int64_t>(offsets_of_chunks, "chunk_offsets", "int64")),
          crcs(output_data<uint32_t>(crcs_of_pieces, "chunk_crcs", "uint32")),
          num_crcs(length(crcs_of_pieces)),
          progress(reinterpret_cast<PackProgress *>(
              output_data<int64_t>(state, "progress", "int64"))),
          options(given),
          grows(are_there) {
        if (names.size() != file_bytes.size())
            throw invalid("paths and file_bytes must have the same length");
        expect_length(files_of_chunks, "chunk_files", num_batches);
        expect_length(offsets_of_chunks, "chunk_offsets", num_batches);
        static_assert(sizeof(PackProgress) == 2 * sizeof(int64_t));
        if (length(state) != 2) throw invalid("progress must have 2 entries");
    }

    // Without the interpreter's lock.
    template <class Id>
    PackCounts run(MissedRanges<Id> &missed) const {
        std::vector<std::unique_ptr<PackFile>> outputs;
        for (size_t i = 0; i < names.size(); ++i)
            outputs.push_back(std::make_unique<PackFile>(names[i], file_bytes[i], grows));
        return pack_rows(files, layout, missed, outputs, chunk_files, chunk_offsets, crcs, num_crcs,
                         options, progress);
    }
};

nb::dict as_dict(const PackCounts &counts) {
    nb::dict dict;
    dict["reads"] = counts.reads;
    dict["bytes_read"] = counts.bytes_read;
    dict["writes"] = counts.writes;
    dict["bytes_written"] = counts.bytes_written;
    dict["rows_packed"] = counts.rows_packed;
    return dict;
}

PackOptions options_of(const std::string &engine, int num_threads, int64_t gap_bytes,
                       int64_t num_windows, int64_t window_bytes, int64_t buffer_bytes,
                       int64_t num_spare_buffers, int64_t piece_bytes) {
    return {.kind = parse_engine_kind(engine),
            .num_threads = num_threads,
            .gap_bytes = gap_bytes,
            .num_windows = num_windows,
            .window_bytes = window_bytes,
            .buffer_bytes = buffer_bytes,
            .num_spare_buffers = num_spare_buffers,
            .piece_bytes = piece_bytes};
}

nb::dict pack(const FileSet &files, const InputArray &rows, const InputArray &begins,
              const InputArray &counts, nb::handle paths, const std::vector<int64_t> &file_bytes,
              const InputArray &chunk_files, const InputArray &chunk_offsets,
              const OutputArray &chunk_crcs, const OutputArray &progress,
              const std::string &engine, int64_t num_rows, int64_t row_bytes,
              int64_t rows_per_page, int64_t page_stride_bytes, int64_t gap_bytes,
              int64_t num_windows, int64_t window_bytes, int64_t buffer_bytes,
              int64_t num_spare_buffers, int64_t piece_bytes, int num_threads,
              bool grows) {
    check_vector(begins, "begins");
    const Packing packing(files, {num_rows, row_bytes, rows_per_page, page_stride_bytes}, paths,
                          file_bytes, chunk_files, chunk_offsets, chunk_crcs, progress,
                          length(begins),
                          options_of(engine, num_threads, gap_bytes, num_windows, window_bytes,
                                     buffer_bytes, num_spare_buffers, piece_bytes),
                          grows);
    check_vector(rows, "rows");
    PackCounts result;
    with_integers(rows, "rows", [&](const auto *values) {
        MissedInMemory missed(sorted_rows(values, length(rows), begins, counts));
        const GilRelease release;
        result = packing.run(missed);
    });
    return as_dict(result);
}

nb::dict pack_spilled(const FileSet &files, const SpillFile &ids, const InputArray &begins,
                      const InputArray &counts, const InputArray &crcs, const InputArray &samples,
                      nb::handle paths, const std::vector<int64_t> &file_bytes,
                      const InputArray &chunk_files, const InputArray &chunk_offsets,
                      const OutputArray &chunk_crcs, const OutputArray &progress, int64_t stride,
                      int64_t max_rows, const std::string &engine, int64_t num_rows,
                      int64_t row_bytes, int64_t rows_per_page, int64_t page_stride_bytes,
                      int64_t gap_bytes, int64_t num_windows, int64_t window_bytes,
                      int64_t buffer_bytes, int64_t num_spare_buffers, int64_t piece_bytes,
                      int num_threads) {
    const int64_t *first = input_data<int64_t>(begins, "begins", "int64");
    const int64_t *sizes = input_data<int64_t>(counts, "num_rows_of", "int64");
    const uint32_t *checksums = input_data<uint32_t>(crcs, "crcs", "uint32");
    const int64_t num_batches = length(begins);
    expect_length(counts, "num_rows_of", num_batches);
    expect_length(crcs, "crcs", num_batches);
    if (std::any_of(sizes, sizes + num_batches, [](int64_t size) { return size < 0; }))
        throw invalid("num_rows_of must not be negative");
    const Packing packing(files, {num_rows, row_bytes, rows_per_page, page_stride_bytes}, paths,
                          file_bytes, chunk_files, chunk_offsets, chunk_crcs, progress,
                          num_batches,
                          options_of(engine, num_threads, gap_bytes, num_windows, window_bytes,
                                     buffer_bytes, num_spare_buffers, piece_bytes),
                          false);
    check_vector(samples, "samples");
    PackCounts result;
    with_integers(samples, "samples", [&](const auto *values) {
        using Id = std::remove_const_t<std::remove_pointer_t<decltype(values)>>;
        const GilRelease release;
        MissedOnDisk<Id> missed(std::vector<int64_t>(sizes, sizes + num_batches),
                                {ids, first, checksums, values, length(samples), stride, max_rows});
        result = packing.run(missed);
    });
    return as_dict(result);
}

ReadCounts read_packed(Reader &reader, const FileSet &files, int64_t file, int64_t offset,
                     const InputArray &positions, const InputArray &repeat_targets,
                     const InputArray &repeat_sources, const OutputArray &out, int64_t row_bytes,
                     const std::optional<InputArray> &crcs, int64_t piece_bytes) {
    PackedChunk chunk = {
        .file = file,
        .offset = offset,
        .row_bytes = row_bytes,
        .positions = input_data<int32_t>(positions, "positions", "int32"),
        .num_rows = length(positions),
        .repeat_targets = input_data<int32_t>(repeat_targets, "repeat_targets", "int32"),
        .repeat_sources = input_data<int32_t>(repeat_sources, "repeat_sources", "int32"),
        .num_repeats = length(repeat_targets)
    };
    expect_length(repeat_sources, "repeat_sources", chunk.num_repeats);
    if (crcs) {
        chunk.crcs = input_data<uint32_t>(*crcs, "crcs", "uint32");
        chunk.num_crcs = length(*crcs);
        chunk.piece_bytes = piece_bytes;
    }
    uint8_t *target = output_data<uint8_t>(out, "out", "uint8");
    auto counts = without_gil([&] {
        return read_packed_rows(reader, files, chunk, target, length(out));
    });
    return counts;
}

}  // namespace

void bind_pack(nb::module_ &m) {
    m.def("sort_misses", sort_missed, "ids"_a.noconvert(), "slots"_a.noconvert(),
          "rows"_a.noconvert(), "positions"_a.noconvert(), nb::kw_only(), "num_rows"_a);
    m.def("min_pack_window_bytes", least_window, "files"_a, nb::kw_only(), "num_rows"_a,
          "row_bytes"_a, "rows_per_page"_a, "page_stride_bytes"_a, "gap_bytes"_a);
    m.def("pack_rows", pack, "files"_a, "rows"_a.noconvert(), "begins"_a.noconvert(),
          "num_rows_of"_a.noconvert(), "paths"_a, "file_bytes"_a, "chunk_files"_a.noconvert(),
          "chunk_offsets"_a.noconvert(), "chunk_crcs"_a.noconvert(), "progress"_a.noconvert(),
          nb::kw_only(), "engine"_a, "num_rows"_a, "row_bytes"_a, "rows_per_page"_a,
          "page_stride_bytes"_a, "gap_bytes"_a, "num_windows"_a, "window_bytes"_a,
          "buffer_bytes"_a, "num_spare_buffers"_a, "piece_bytes"_a, "num_threads"_a = 1,
          "grows"_a = false);
    m.def("pack_spilled_rows", pack_spilled, "files"_a, "ids"_a, "begins"_a.noconvert(),
          "num_rows_of"_a.noconvert(), "crcs"_a.noconvert(), "samples"_a.noconvert(), "paths"_a,
          "file_bytes"_a, "chunk_files"_a.noconvert(), "chunk_offsets"_a.noconvert(),
          "chunk_crcs"_a.noconvert(), "progress"_a.noconvert(), nb::kw_only(), "stride"_a,
          "max_rows"_a, "engine"_a, "num_rows"_a, "row_bytes"_a, "rows_per_page"_a,
          "page_stride_bytes"_a, "gap_bytes"_a, "num_windows"_a, "window_bytes"_a,
          "buffer_bytes"_a, "num_spare_buffers"_a, "piece_bytes"_a, "num_threads"_a = 1);
    m.def("read_packed_rows", read_packed, "reader"_a, "files"_a, "file"_a, "offset"_a,
          "positions"_a.noconvert(), "repeat_targets"_a.noconvert(),
          "repeat_sources"_a.noconvert(), "out"_a.noconvert(), nb::kw_only(), "row_bytes"_a,
          "crcs"_a.noconvert() = nb::none(), "piece_bytes"_a = 0);
}
