// The plan of a cache whose rows were chosen beforehand.
#include "kernels/rows/fixed_cache.h"

#include <limits>

#include "bindings/arrays.h"
#include "bindings/bindings.h"

using namespace gnnstore;
using namespace nb::literals;

namespace {

nb::tuple plan(const InputArray &bits, const InputArray &ranks, const OutputArray &held,
               const OutputArray &seen, const InputArray &ids, const OutputArray &slots) {
    const FixedCache cache{.bits = input_data<uint64_t>(bits, "bits", "uint64"),
                           .ranks = input_data<int32_t>(ranks, "ranks", "int32"),
                           .num_words = length(bits),
                           .held = output_data<uint8_t>(held, "held", "uint8"),
                           .num_slots = length(held)};
    uint64_t *marks = output_data<uint64_t>(seen, "seen", "uint64");
    int32_t *places = output_data<int32_t>(slots, "slots", "int32");
    check_vector(ids, "ids");
    check_lengths("bits, ranks and seen", bits, ranks, seen);
    require(length(slots) == length(ids), "slots must have one entry per id");
    if (length(ids) > std::numeric_limits<int32_t>::max())
        throw invalid("a batch has 2^31 rows or more; make batches smaller");
    FixedStep step;
    with_integers(ids, "ids", [&](const auto *values) {
        const GilRelease release;
        step = plan_fixed(cache, values, length(ids), marks, places);
    });
    return nb::make_tuple(step.misses, take_vector(std::move(step.positions)),
                          take_vector(std::move(step.slots)));
}

}  // namespace

void bind_fixed_cache(nb::module_ &m) {
    m.def("plan_fixed", plan, "bits"_a.noconvert(), "ranks"_a.noconvert(), "held"_a.noconvert(),
          "seen"_a.noconvert(), "ids"_a.noconvert(), "slots"_a.noconvert());
}
