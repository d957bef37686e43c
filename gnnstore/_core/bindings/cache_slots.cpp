#include "kernels/cache_slots.h"

#include "bindings/arrays.h"
#include "bindings/storage.h"

using namespace gnnstore;
using namespace nb::literals;

namespace {

void require_length(const InputArray &array, const char *name, int64_t expected,
                    const char *others) {
    if (length(array) != expected)
        throw std::invalid_argument(std::string(name) + " must have one entry per " + others +
                                    ": expected " + std::to_string(expected) + ", got " +
                                    std::to_string(length(array)));
}

int64_t whole_rows(int64_t num_bytes, const char *name, int64_t row_bytes) {
    if (row_bytes < 1)
        throw std::invalid_argument("row_bytes must be at least 1, got " +
                                    std::to_string(row_bytes));
    if (num_bytes % row_bytes != 0)
        throw std::invalid_argument(std::string(name) + " must hold whole rows of " +
                                    std::to_string(row_bytes) + " bytes, got " +
                                    std::to_string(num_bytes) + " bytes");
    return num_bytes / row_bytes;
}

void check(const InputArray &nodes, const InputArray &slots, const InputArray &ids) {
    const int64_t *held = input_data<int64_t>(nodes, "nodes", "int64");
    const int32_t *places = input_data<int32_t>(slots, "slots", "int32");
    check_vector(ids, "ids");
    require_length(slots, "slots", length(ids), "id");
    with_integers(ids, "ids", [&](const auto *values) {
        const GilRelease release;
        check_cached(held, length(nodes), places, values, length(ids));
    });
}

int64_t copy_out(const InputArray &cache, const InputArray &slots, const OutputArray &out,
                 int64_t row_bytes, int num_threads) {
    const CachedRows cached{.table = input_data<uint8_t>(cache, "cache", "uint8"),
                            .num_slots = whole_rows(length(cache), "cache", row_bytes),
                            .slots = input_data<int32_t>(slots, "slots", "int32")};
    uint8_t *target = output_data<uint8_t>(out, "out", "uint8");
    const GilRelease release;
    return copy_from_slots(cached, length(slots), row_bytes, target, length(out),
                           num_threads);
}

void copy_in(const InputArray &rows, const InputArray &positions, const OutputArray &cache,
             const InputArray &slots, int64_t row_bytes) {
    const uint8_t *source = input_data<uint8_t>(rows, "rows", "uint8");
    const SlotChanges changes{.positions = input_data<int32_t>(positions, "positions", "int32"),
                              .slots = input_data<int32_t>(slots, "slots", "int32"),
                              .size = length(slots)};
    require_length(positions, "positions", length(slots), "slot");
    uint8_t *table = output_data<uint8_t>(cache, "cache", "uint8");
    const int64_t num_rows = whole_rows(length(rows), "rows", row_bytes);
    const int64_t num_slots = whole_rows(length(cache), "cache", row_bytes);
    const GilRelease release;
    copy_to_slots(source, num_rows, changes, row_bytes, table, num_slots);
}

}  // namespace

void bind_cache_slots(nb::module_ &m) {
    m.def("check_cached", check, "nodes"_a.noconvert(), "slots"_a.noconvert(),
          "ids"_a.noconvert());
    m.def("copy_from_slots", copy_out, "cache"_a.noconvert(), "slots"_a.noconvert(),
          "out"_a.noconvert(), nb::kw_only(), "row_bytes"_a, "num_threads"_a = 1);
    m.def("copy_to_slots", copy_in, "rows"_a.noconvert(), "positions"_a.noconvert(),
          "cache"_a.noconvert(), "slots"_a.noconvert(), nb::kw_only(), "row_bytes"_a);
}
