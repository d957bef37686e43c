#include "bindings/arrays.h"
#include "bindings/storage.h"
#include "kernels/base/check_ids.h"
#include "kernels/files/crc32c.h"

using namespace gnnstore;
using namespace nb::literals;

namespace {

template <uint32_t (*checksum)(const uint8_t *, size_t, uint32_t)>
uint32_t checksum_of(const InputArray &data, uint32_t initial) {
    const uint8_t *bytes = input_data<uint8_t>(data, "data", "uint8");
    const auto num_bytes = static_cast<size_t>(length(data));
    const GilRelease release;
    return checksum(bytes, num_bytes, initial);
}

NumpyVector<uint32_t> blocks(const InputArray &data, int64_t block_bytes) {
    const uint8_t *bytes = input_data<uint8_t>(data, "data", "uint8");
    const int64_t num_bytes = length(data);
    auto checksums = without_gil([&] { return crc32c_blocks(bytes, num_bytes, block_bytes); });
    return take_vector(std::move(checksums));
}

NumpyVector<uint32_t> rows(const InputArray &data, const InputArray &which, int64_t row_bytes) {
    const uint8_t *bytes = input_data<uint8_t>(data, "data", "uint8");
    const int32_t *ids = input_data<int32_t>(which, "rows", "int32");
    require(row_bytes >= 1, "row_bytes must be at least 1, got ", row_bytes);
    std::vector<uint32_t> checksums(static_cast<size_t>(length(which)));
    {
        const GilRelease release;
        check_ids(ids, length(which), length(data) / row_bytes);
        crc32c_rows(bytes, ids, length(which), row_bytes, checksums.data());
    }
    return take_vector(std::move(checksums));
}

void ranges(const InputArray &data, const InputArray &begins, const InputArray &ends,
            const OutputArray &crcs) {
    const uint8_t *bytes = input_data<uint8_t>(data, "data", "uint8");
    const int64_t *from = input_data<int64_t>(begins, "begins", "int64");
    const int64_t *to = input_data<int64_t>(ends, "ends", "int64");
    uint32_t *sums = output_data<uint32_t>(crcs, "crcs", "uint32");
    const int64_t count = length(begins), num_bytes = length(data);
    check_lengths("begins, ends and crcs", begins, ends, crcs);
    const GilRelease release;
    for (int64_t i = 0; i < count; ++i)
        if (from[i] < 0 || from[i] > to[i] || to[i] > num_bytes)
            throw out_of_range("range ", i, " is from byte ", from[i], " to ", to[i], " of ",
                               num_bytes);
    crc32c_ranges(bytes, from, to, count, sums);
}

NumpyVector<uint32_t> file(nb::handle path, int64_t block_bytes, int num_threads) {
    const std::string name = fs_path(path);
    auto checksums = without_gil([&] { return crc32c_file(name, block_bytes, num_threads); });
    return take_vector(std::move(checksums));
}

}  // namespace

void bind_checksums(nb::module_ &m) {
    m.def("crc32c", checksum_of<crc32c>, "data"_a.noconvert(), "initial"_a = 0);
    m.def("crc32c_portable", checksum_of<crc32c_portable>, "data"_a.noconvert(), "initial"_a = 0);
    m.def("crc32c_streams", checksum_of<crc32c_streams>, "data"_a.noconvert(), "initial"_a = 0);
    m.def("crc32c_implementation", [] { return crc32c_implementation(); });
    m.def("crc32c_blocks", blocks, "data"_a.noconvert(), "block_bytes"_a);
    m.def("crc32c_rows", rows, "data"_a.noconvert(), "rows"_a.noconvert(), "row_bytes"_a);
    m.def("crc32c_ranges", ranges, "data"_a.noconvert(), "begins"_a.noconvert(),
          "ends"_a.noconvert(), "crcs"_a.noconvert());
    m.def("crc32c_file", file, "path"_a, "block_bytes"_a, "num_threads"_a = 1);
}
