// Reads around the page cache: files, engines, and rows fetched by them.
#include <nanobind/stl/array.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <array>
#include <bit>
#include <optional>

#include "bindings/arrays.h"
#include "bindings/storage.h"
#include "kernels/reading/row_reader.h"
#include "kernels/rows/node_slots.h"

using namespace gnnstore;
using namespace nb::literals;

namespace {

void make_counts(ReadCounts *self, int64_t reads, int64_t bytes_read, int64_t bytes_useful,
                 int64_t rows_read, int64_t rows_cached) {
    new (self) ReadCounts{.reads = reads,
                          .bytes_read = bytes_read,
                          .bytes_useful = bytes_useful,
                          .rows_read = rows_read,
                          .rows_cached = rows_cached};
}

ReadCounts sum(ReadCounts counts, const ReadCounts &other) { return counts += other; }

using CountsState = std::array<int64_t, 8>;

CountsState state_of(const ReadCounts &counts) { return std::bit_cast<CountsState>(counts); }

void set_state(ReadCounts &self, const CountsState &state) {
    new (&self) ReadCounts(std::bit_cast<ReadCounts>(state));
}

nb::str show(const ReadCounts &counts) {
    return nb::str("ReadCounts(reads={}, bytes_read={}, bytes_useful={}, rows_read={}, "
                   "rows_cached={}, depth_sum={}, waits={}, seconds_waiting={})")
        .format(counts.reads, counts.bytes_read, counts.bytes_useful, counts.rows_read,
                counts.rows_cached, counts.depth_sum, counts.waits,
                1e-9 * static_cast<double>(counts.nanoseconds_waiting));
}

void open_files(FileSet *self, nb::handle paths, const std::vector<int64_t> &body_bytes,
                bool direct) {
    const std::vector<std::string> names = fs_paths(paths);
    const GilRelease release;
    new (self) FileSet(names, body_bytes, direct);
}

std::string buffered_because(const FileSet &files) {
    for (size_t i = 0; i < files.size(); ++i)
        if (!files.file(i).buffered_because().empty()) return files.file(i).buffered_because();
    return "";
}

void make_reader(Reader *self, const std::string &engine, int queue_depth, int num_threads,
                 int64_t max_read_bytes) {
    new (self) Reader({.kind = parse_engine_kind(engine),
                       .queue_depth = queue_depth,
                       .num_threads = num_threads,
                       .max_read_bytes = max_read_bytes});
}

ReadCounts gather(Reader &reader, const FileSet &files, const InputArray &ids,
                const OutputArray &out, int64_t num_rows, int64_t row_bytes, int64_t rows_per_page,
                int64_t page_stride_bytes, int64_t begin_bytes, int64_t gap_bytes,
                const std::optional<InputArray> &cache, const std::optional<InputArray> &slots) {
    const RowLayout layout{num_rows, row_bytes, rows_per_page, page_stride_bytes, begin_bytes};
    uint8_t *target = output_data<uint8_t>(out, "out", "uint8");
    if (cache && !slots) throw invalid("cache is given without slots");
    CachedRows cached{.num_slots = any_slot};
    if (cache) {
        const auto rows = slot_rows<const uint8_t>(*cache, "cache");
        if (rows.row_bytes != row_bytes)
            throw invalid("cache must have rows of ", row_bytes, " bytes, got ", rows.row_bytes);
        cached.table = rows.data;
        cached.num_slots = rows.num_slots;
        cached.slot_bytes = rows.slot_bytes;
    }
    if (slots) {
        cached.slots = input_data<int32_t>(*slots, "slots", "int32");
        require(length(*slots) == length(ids), "slots must have one entry per id: expected ",
                length(ids), ", got ", length(*slots));
    }
    ReadCounts counts;
    with_integers(ids, "ids", [&](const auto *values) {
        const GilRelease release;
        counts = reader.gather(files, layout, values, length(ids), cached, gap_bytes, target,
                               length(out));
    });
    return counts;
}

ReadCounts read_ranges(Reader &reader, const FileSet &files, const InputArray &file_index,
                     const InputArray &offsets, const InputArray &num_bytes,
                     const InputArray &out_offsets, const OutputArray &out) {
    const int64_t *columns[] = {input_data<int64_t>(file_index, "file_index", "int64"),
                                input_data<int64_t>(offsets, "offsets", "int64"),
                                input_data<int64_t>(num_bytes, "num_bytes", "int64"),
                                input_data<int64_t>(out_offsets, "out_offsets", "int64")};
    const int64_t size = length(file_index);
    check_lengths("file_index, offsets, num_bytes and out_offsets",
                  file_index, offsets, num_bytes, out_offsets);
    uint8_t *target = output_data<uint8_t>(out, "out", "uint8");
    ReadCounts counts;
    {
        const GilRelease release;
        std::vector<ReadRange> ranges(static_cast<size_t>(size));
        for (int64_t i = 0; i < size; ++i)
            ranges[static_cast<size_t>(i)] = {columns[0][i], columns[1][i], columns[2][i],
                                              columns[3][i]};
        counts = reader.read(files, ranges, target, length(out));
    }
    return counts;
}

// A real engine reads the beginning of a real file: what a list of kernel versions would say
// does not count.
std::string probe_engine(const std::string &engine, nb::handle path, bool direct) {
    const std::string name = fs_path(path);
    const EngineKind kind = parse_engine_kind(engine);
    const GilRelease release;
    const FileSet files({name}, {1}, direct);
    Reader reader({.kind = kind});
    uint8_t byte;
    (void)reader.read(files, {{.file = 0, .offset = 0, .num_bytes = 1, .out_offset = 0}}, &byte, 1);
    return reader.describe();
}

nb::tuple index_cached(const InputArray &nodes, int64_t num_nodes) {
    const int64_t *values = input_data<int64_t>(nodes, "nodes", "int64");
    require(num_nodes >= 0, "num_nodes must not be negative, got ", num_nodes);
    const int64_t num_words = num_nodes / 64 + (num_nodes % 64 != 0);
    auto bits = pooled_vector<uint64_t>(num_words);
    auto ranks = pooled_vector<int32_t>(num_words);
    without_gil([&] { index_nodes(values, length(nodes), num_nodes, bits.data(), ranks.data()); });
    return nb::make_tuple(bits, ranks);
}

NumpyVector<int32_t> slots_of(const InputArray &bits, const InputArray &ranks,
                              const InputArray &ids) {
    const uint64_t *words = input_data<uint64_t>(bits, "bits", "uint64");
    const int32_t *counts = input_data<int32_t>(ranks, "ranks", "int32");
    check_lengths("bits and ranks", bits, ranks);
    check_vector(ids, "ids");
    auto slots = pooled_vector<int32_t>(length(ids));
    with_integers(ids, "ids", [&](const auto *values) {
        const GilRelease release;
        find_slots(words, counts, length(bits), values, length(ids), slots.data());
    });
    return slots;
}

void count(const InputArray &ids, const OutputArray &counts) {
    const auto add = [&](auto *values) {
        with_integers(ids, "ids", [&](const auto *elements) {
            const GilRelease release;
            count_ids(elements, length(ids), values, length(counts));
        });
    };
    if (counts.dtype() == nb::dtype<uint8_t>())
        add(output_data<uint8_t>(counts, "counts", "uint8 or uint32"));
    else
        add(output_data<uint32_t>(counts, "counts", "uint8 or uint32"));
}

}  // namespace

void bind_reader(nb::module_ &m) {
    nb::class_<ReadCounts>(m, "ReadCounts")
        .def("__init__", make_counts, nb::kw_only(), "reads"_a = 0, "bytes_read"_a = 0,
             "bytes_useful"_a = 0, "rows_read"_a = 0, "rows_cached"_a = 0)
        .def_ro("reads", &ReadCounts::reads)
        .def_ro("bytes_read", &ReadCounts::bytes_read)
        .def_ro("bytes_useful", &ReadCounts::bytes_useful)
        .def_ro("rows_read", &ReadCounts::rows_read)
        .def_ro("rows_cached", &ReadCounts::rows_cached)
        .def_ro("depth_sum", &ReadCounts::depth_sum)
        .def_ro("waits", &ReadCounts::waits)
        .def_prop_ro("seconds_waiting", [](const ReadCounts &counts) {
            return 1e-9 * static_cast<double>(counts.nanoseconds_waiting);
        })
        .def("__add__", sum, "other"_a)
        .def(
            "__eq__", [](const ReadCounts &a, const ReadCounts &b) { return a == b; }, "other"_a,
            nb::is_operator(), nb::sig("def __eq__(self, other: object) -> bool"))
        .def("__repr__", show)
        .def("__getstate__", state_of)
        .def("__setstate__", set_state, "state"_a);
    nb::class_<FileSet>(m, "FileSet")
        .def("__init__", open_files, "paths"_a, "body_bytes"_a, nb::kw_only(), "direct"_a = true)
        .def_prop_ro("alignment_bytes", &FileSet::alignment)
        .def_prop_ro("is_direct", &FileSet::is_direct)
        .def_prop_ro("buffered_because", buffered_because);
    nb::class_<Reader>(m, "Reader", nb::is_weak_referenceable())
        .def("__init__", make_reader, "engine"_a, nb::kw_only(), "queue_depth"_a = 128,
             "num_threads"_a = 32, "max_read_bytes"_a = 1 << 16)
        .def("gather_rows", gather, "files"_a, "ids"_a.noconvert(), "out"_a.noconvert(),
             nb::kw_only(), "num_rows"_a, "row_bytes"_a, "rows_per_page"_a, "page_stride_bytes"_a,
             "begin_bytes"_a = 0, "gap_bytes"_a = 0, "cache"_a.noconvert() = nb::none(),
             "slots"_a.noconvert() = nb::none())
        .def("read_ranges", read_ranges, "files"_a, "file_index"_a.noconvert(),
             "offsets"_a.noconvert(), "num_bytes"_a.noconvert(), "out_offsets"_a.noconvert(),
             "out"_a.noconvert())
        .def_prop_ro("staging_bytes", &Reader::staging_bytes)
        .def("describe", [](Reader &reader) {
            const GilRelease release;
            return reader.describe();
        });
    m.def("probe_engine", probe_engine, "engine"_a, "path"_a, "direct"_a = true);
    m.def("index_nodes", index_cached, "nodes"_a.noconvert(), "num_nodes"_a);
    m.def("find_slots", slots_of, "bits"_a.noconvert(), "ranks"_a.noconvert(),
          "ids"_a.noconvert());
    m.def("count_ids", count, "ids"_a.noconvert(), "counts"_a.noconvert());
}
