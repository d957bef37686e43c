// Planning: what a cache should hold while the batches of a known trace are assembled.
#include "bindings/arrays.h"
#include "bindings/bindings.h"
#include "kernels/files/spill_file.h"
#include "kernels/planning/belady.h"
#include "kernels/planning/belady_spilled.h"
#include "kernels/traces/access_lists.h"
#include "kernels/traces/distinct_rows.h"

using namespace gnnstore;
using namespace nb::literals;

namespace {

// Calls use(trace) for ids of 32 or 64 bits.
template <class Use>
void with_trace(const InputArray &ids, const InputArray &offsets, const Use &use) {
    const int64_t *bounds = input_data<int64_t>(offsets, "offsets", "int64");
    const int64_t num_batches = length(offsets) - 1;
    with_integers(ids, "ids", [&](const auto *values) {
        using Id = std::remove_const_t<std::remove_pointer_t<decltype(values)>>;
        const GilRelease release;
        use(Trace<Id>{values, length(ids), bounds, num_batches});
    });
}

int64_t num_batches_of(const InputArray &offsets) {
    check_vector(offsets, "offsets");
    if (length(offsets) == 0) throw invalid("offsets must not be empty");
    return length(offsets) - 1;
}

// The cache that a plan begins with and leaves.
struct Cache {
    Cache(const OutputArray &nodes, const OutputArray &frequencies)
        : num_slots(length_of(nodes, "nodes")),
          nodes(output_data<int64_t>(nodes, "nodes", "int64")),
          frequencies(output_data<int32_t>(frequencies, "frequencies", "int32")) {
        check_lengths("nodes and frequencies", nodes, frequencies);
    }

    int64_t num_slots;
    int64_t *nodes;
    int32_t *frequencies;

private:
    static int64_t length_of(const OutputArray &array, const char *name) {
        check_vector(array, name);
        return length(array);
    }
};

nb::tuple belady(const InputArray &ids, const InputArray &offsets, const OutputArray &nodes,
                 const OutputArray &frequencies, int num_threads) {
    auto misses = pooled_vector<int64_t>(num_batches_of(offsets));
    check_vector(ids, "ids");
    auto slots = pooled_vector<int32_t>(length(ids));
    const Cache cache(nodes, frequencies);
    CacheChanges changes;
    with_trace(ids, offsets, [&](const auto &trace) {
        changes = plan_belady(trace, cache.num_slots, cache.nodes, cache.frequencies, slots.data(),
                              misses.data(), num_threads);
    });
    return nb::make_tuple(slots, misses, take_vector(std::move(changes.offsets)),
                          take_vector(std::move(changes.positions)),
                          take_vector(std::move(changes.slots)));
}

template <class T>
NumpyVector<T> vector_of(const T *values, int64_t count) {
    auto result = pooled_vector<T>(count);
    std::copy_n(values, count, result.data());
    return result;
}

int32_t check_listed(int64_t size) {
    if (size > list_block)
        throw invalid("at most ", list_block, " accesses are listed at a time, got ", size);
    return static_cast<int32_t>(size);
}

nb::tuple lists_of(const InputArray &next_uses, const OutputArray &slots, int32_t here,
                   int32_t later, int32_t kept_end, int32_t stay_end, bool portable) {
    const int32_t *uses = input_data<int32_t>(next_uses, "next_uses", "int32");
    int32_t *slots_here = output_data<int32_t>(slots, "slots", "int32");
    check_lengths("next_uses and slots", next_uses, slots);
    const int32_t size = check_listed(length(next_uses));
    require(here >= 0 && later >= here, "a batch begins at position 0 or behind it, and ends there "
            "or behind that, got ", here, " and ", later);
    for (int32_t i = 0; i < size; ++i)
        if (uses[i] >= 0 && uses[i] < later && (uses[i] - here <= i || uses[i] - here >= size))
            throw invalid("what is repeated must name an access behind it, got ", uses[i], " at "
                          "position ", i);
    const KeptUses kept{here, later, kept_end, stay_end};
    AccessLists lists;
    (portable ? list_accesses_portable : list_accesses)(uses, slots_here, 0, size, kept, lists);
    return nb::make_tuple(vector_of(lists.uses, lists.num_handed_on),
                          vector_of(lists.slots, lists.num_handed_on),
                          vector_of(lists.others, lists.num_others));
}

NumpyVector<int32_t> places_between(const InputArray &values, int32_t low, int32_t high,
                                    bool portable) {
    const int32_t *held = input_data<int32_t>(values, "values", "int32");
    const int32_t size = check_listed(length(values));
    int32_t found[list_block + list_slack];
    const auto list = portable ? list_between_portable : list_between;
    return vector_of(found, list(held, size, low, high, found));
}

// One of the arrays that say something of each batch.
template <class T>
const T *of_batches(const InputArray &array, const char *name, const char *dtype,
                    int64_t num_batches) {
    const T *values = input_data<T>(array, name, dtype);
    require(length(array) == num_batches, name, " must have one entry for each of ", num_batches,
            " batches, got ", length(array));
    return values;
}

nb::tuple belady_spilled(const SpillFile &ids, const InputArray &begins, const InputArray &crcs,
                         const InputArray &offsets, bool are_wide, int64_t num_nodes,
                         const OutputArray &nodes, const OutputArray &frequencies,
                         int64_t table_bytes, SpillFile &slots, SpillFile &changes, int num_threads) {
    const int64_t num_batches = num_batches_of(offsets);
    const SpilledTrace trace{ids,
                             of_batches<int64_t>(begins, "begins", "int64", num_batches),
                             of_batches<uint32_t>(crcs, "crcs", "uint32", num_batches),
                             input_data<int64_t>(offsets, "offsets", "int64"),
                             num_batches,
                             num_nodes};
    const Cache cache(nodes, frequencies);
    auto misses = pooled_vector<int64_t>(num_batches);
    auto slot_crcs = pooled_vector<uint32_t>(num_batches);
    auto change_offsets = pooled_vector<int64_t>(num_batches + 1);
    auto change_crcs = pooled_vector<uint32_t>(num_batches);
    const SpilledPlan plan{slots,           changes, misses.data(), slot_crcs.data(),
                           change_offsets.data(), change_crcs.data()};
    {
        const GilRelease release;
        const auto make = are_wide ? plan_belady_spilled<int64_t> : plan_belady_spilled<int32_t>;
        make(trace, cache.num_slots, cache.nodes, cache.frequencies, table_bytes, num_threads, plan);
    }
    return nb::make_tuple(misses, slot_crcs, change_offsets, change_crcs);
}

void distinct(const InputArray &nodes, const OutputArray &out) {
    const int64_t *held = input_data<int64_t>(nodes, "nodes", "int64");
    int64_t *result = output_data<int64_t>(out, "out", "int64");
    check_lengths("nodes and out", nodes, out);
    const GilRelease release;
    distinct_rows(held, length(nodes), result);
}

// --- files of traces and plans -------------------------------------------------------------------

void make_file(SpillFile *self, nb::handle path) {
    const std::string name = fs_path(path);
    const GilRelease release;
    new (self) SpillFile(name);
}

nb::tuple append_values(SpillFile &file, const InputArray &values, int64_t batch) {
    return with_integers(values, "values", [&](const auto *data) {
        const auto num_bytes = length(values) * static_cast<int64_t>(sizeof *data);
        uint32_t crc;
        int64_t begin;
        {
            const GilRelease release;
            crc = SpillFile::checksum(data, num_bytes, batch);
            begin = file.append(data, num_bytes);
        }
        return nb::make_tuple(begin, crc);
    });
}

template <class T>
NumpyVector<T> read_values(const SpillFile &file, int64_t begin, int64_t count, uint32_t crc,
                    int64_t batch) {
    auto values = pooled_vector<T>(count);
    const GilRelease release;
    file.read(values.data(), count * static_cast<int64_t>(sizeof(T)), begin, crc, batch);
    return values;
}

void close_file(SpillFile &file) {
    const GilRelease release;
    file.close();
}

}  // namespace

void bind_planning(nb::module_ &m) {
    m.def("plan_belady", belady, "ids"_a.noconvert(), "offsets"_a.noconvert(),
          "nodes"_a.noconvert(), "frequencies"_a.noconvert(), "num_threads"_a = 1);
    m.def("access_lists", lists_of, "next_uses"_a.noconvert(), "slots"_a.noconvert(), nb::kw_only(),
          "here"_a, "later"_a, "kept_end"_a, "stay_end"_a, "portable"_a = false);
    m.def("places_between", places_between, "values"_a.noconvert(), "low"_a, "high"_a,
          "portable"_a = false);
    m.def("plan_belady_spilled", belady_spilled, "ids"_a, "begins"_a.noconvert(),
          "crcs"_a.noconvert(), "offsets"_a.noconvert(), nb::kw_only(), "are_wide"_a,
          "num_nodes"_a, "nodes"_a.noconvert(), "frequencies"_a.noconvert(), "table_bytes"_a,
          "slots"_a, "changes"_a, "num_threads"_a = 1);
    m.def("distinct_rows", distinct, "nodes"_a.noconvert(), "out"_a.noconvert());
    nb::class_<SpillFile>(m, "SpillFile")
        .def("__init__", make_file, "path"_a)
        .def("append", append_values, "values"_a.noconvert(), "batch"_a)
        .def("read_int32", read_values<int32_t>, "begin"_a, "count"_a, "crc"_a, "batch"_a)
        .def("read_int64", read_values<int64_t>, "begin"_a, "count"_a, "crc"_a, "batch"_a)
        .def("close", close_file)
        .def_prop_ro("num_bytes", &SpillFile::size);
}
