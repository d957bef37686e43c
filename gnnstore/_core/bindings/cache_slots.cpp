#include "kernels/rows/cache_slots.h"

#include <algorithm>
#include <limits>

#include "bindings/arrays.h"
#include "bindings/decoding.h"
#include "bindings/storage.h"
#include "kernels/rows/pinned_rows.h"
#include "kernels/rows/places.h"

using namespace gnnstore;
using namespace nb::literals;

namespace {

void require_length(const InputArray &array, const char *name, int64_t expected,
                    const char *others) {
    require(length(array) == expected, name, " must have one entry per ", others, ": expected ",
            expected, ", got ", length(array));
}

int64_t whole_rows(int64_t num_bytes, const char *name, int64_t row_bytes) {
    require(row_bytes >= 1, "row_bytes must be at least 1, got ", row_bytes);
    require(num_bytes % row_bytes == 0, name, " must hold whole rows of ", row_bytes, " bytes, "
            "got ", num_bytes, " bytes");
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

CachedRows cached_rows(const SlotRows<const uint8_t> &rows, const InputArray &slots) {
    return {.table = rows.data,
            .num_slots = rows.num_slots,
            .slot_bytes = rows.slot_bytes,
            .slots = input_data<int32_t>(slots, "slots", "int32")};
}

int64_t copy_out(const InputArray &cache, const InputArray &slots, const OutputArray &out,
                 int num_threads) {
    const auto rows = slot_rows<const uint8_t>(cache, "cache");
    const CachedRows cached = cached_rows(rows, slots);
    uint8_t *target = output_data<uint8_t>(out, "out", "uint8");
    const GilRelease release;
    return copy_from_slots(cached, length(slots), rows.row_bytes, target, length(out),
                           num_threads);
}

int64_t decode_out(const InputArray &cache, const InputArray &slots, const InputArray &missed,
                   const InputArray &scales, const OutputArray &out, const std::string &dtype,
                   int num_threads) {
    const auto rows = slot_rows<const uint8_t>(cache, "cache");
    const CachedRows cached = cached_rows(rows, slots);
    const Decoding decoding = decoding_of(scales, dtype);
    require(decoding.width == rows.row_bytes, "there are ", decoding.width, " scales, and rows of ",
            rows.row_bytes, " bytes");
    const DenseRows others{input_data<uint8_t>(missed, "missed", "uint8"), length(missed)};
    uint8_t *target = output_data<uint8_t>(out, "out", "uint8");
    const GilRelease release;
    return decode_from_slots(cached, length(slots), others, decoding, target, length(out),
                             num_threads);
}

void copy_in(const InputArray &rows, const InputArray &positions, const OutputArray &cache,
             const InputArray &slots) {
    const uint8_t *source = input_data<uint8_t>(rows, "rows", "uint8");
    const SlotChanges changes{.positions = input_data<int32_t>(positions, "positions", "int32"),
                              .slots = input_data<int32_t>(slots, "slots", "int32"),
                              .size = length(slots)};
    require_length(positions, "positions", length(slots), "slot");
    const auto to = slot_rows<uint8_t>(cache, "cache");
    const int64_t num_rows = whole_rows(length(rows), "rows", to.row_bytes);
    const GilRelease release;
    copy_to_slots(source, num_rows, changes, to.row_bytes,
                  {to.data, to.num_slots, to.slot_bytes});
}

nb::object without_pinned(const InputArray &bits, const InputArray &ids) {
    const uint64_t *words = input_data<uint64_t>(bits, "bits", "uint64");
    return with_integers(ids, "ids", [&](const auto *values) {
        using Id = std::remove_cvref_t<decltype(*values)>;
        // A batch waits for its turn without them: it takes no more memory than it has ids.
        const auto kept =
            std::make_unique_for_overwrite<Id[]>(static_cast<size_t>(length(ids) + 1));
        int64_t count = 0;
        {
            const GilRelease release;
            count = drop_pinned(words, length(bits), values, length(ids), kept.get());
        }
        auto found = pooled_vector<Id>(count);
        std::copy_n(kept.get(), count, found.data());
        return nb::cast(found);
    });
}

nb::tuple with_pinned(const InputArray &bits, const InputArray &ranks, const InputArray &ids,
                      const InputArray &slots, const InputArray &positions, int64_t first_slot) {
    const int64_t num_words = length(bits);
    check_lengths("bits and ranks", bits, ranks);
    if (first_slot < 0 || first_slot > std::numeric_limits<int32_t>::max())
        throw invalid("first_slot must be from 0 to 2^31 - 1, got ", first_slot);
    PinnedStep step{.bits = input_data<uint64_t>(bits, "bits", "uint64"),
                    .ranks = input_data<int32_t>(ranks, "ranks", "int32"),
                    .num_words = num_words,
                    .first_slot = first_slot,
                    .slots = input_data<int32_t>(slots, "slots", "int32"),
                    .num_unpinned = length(slots),
                    .positions = input_data<int32_t>(positions, "positions", "int32"),
                    .num_changes = length(positions),
                    .all_slots = nullptr,
                    .all_positions = nullptr};
    check_vector(ids, "ids");
    auto all_slots = pooled_vector<int32_t>(length(ids));
    auto all_positions = pooled_vector<int32_t>(length(positions));
    step.all_slots = all_slots.data();
    step.all_positions = all_positions.data();
    with_integers(ids, "ids", [&](const auto *values) {
        const GilRelease release;
        add_pinned(step, values, length(ids));
    });
    return nb::make_tuple(all_slots, all_positions);
}

nb::object find_places(const InputArray &ids, const InputArray &known) {
    check_vector(ids, "ids");
    check_vector(known, "known");
    if (length(known) > std::numeric_limits<int32_t>::max())
        throw invalid("a batch has 2^31 rows or more; make batches smaller");
    auto places = pooled_vector<int32_t>(length(ids));
    with_integers(ids, "ids", [&](const auto *values) {
        with_integers(known, "known", [&](const auto *others) {
            const GilRelease release;
            places_of(values, length(ids), others, length(known), places.data());
        });
    });
    return nb::cast(places);
}

void require_one(int64_t found) {
    require(found == 1, "cell must have one element, got ", found);
}

int64_t acquired(const InputArray &cell) {
    const int64_t *value = input_data<int64_t>(cell, "cell", "int64");
    require_one(length(cell));
    return __atomic_load_n(value, __ATOMIC_ACQUIRE);
}

void released(const OutputArray &cell, int64_t value) {
    int64_t *target = output_data<int64_t>(cell, "cell", "int64");
    require_one(length(cell));
    __atomic_store_n(target, value, __ATOMIC_RELEASE);
}

}  // namespace

void bind_cache_slots(nb::module_ &m) {
    m.def("load_acquire", acquired, "cell"_a.noconvert());
    m.def("store_release", released, "cell"_a.noconvert(), "value"_a);
    m.def("check_cached", check, "nodes"_a.noconvert(), "slots"_a.noconvert(),
          "ids"_a.noconvert());
    m.def("copy_from_slots", copy_out, "cache"_a.noconvert(), "slots"_a.noconvert(),
          "out"_a.noconvert(), nb::kw_only(), "num_threads"_a = 1);
    m.def("decode_from_slots", decode_out, "cache"_a.noconvert(), "slots"_a.noconvert(),
          "missed"_a.noconvert(), "scales"_a.noconvert(), "out"_a.noconvert(), nb::kw_only(),
          "dtype"_a, "num_threads"_a = 1);
    m.def("copy_to_slots", copy_in, "rows"_a.noconvert(), "positions"_a.noconvert(),
          "cache"_a.noconvert(), "slots"_a.noconvert());
    m.def("drop_pinned", without_pinned, "bits"_a.noconvert(), "ids"_a.noconvert());
    m.def("add_pinned", with_pinned, "bits"_a.noconvert(), "ranks"_a.noconvert(),
          "ids"_a.noconvert(), "slots"_a.noconvert(), "positions"_a.noconvert(), nb::kw_only(),
          "first_slot"_a);
    m.def("places_of", find_places, "ids"_a.noconvert(), "known"_a.noconvert());
}
