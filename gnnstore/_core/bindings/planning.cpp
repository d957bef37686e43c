// Planning: what a cache should hold while the batches of a known trace are assembled.
#include <nanobind/stl/string.h>

#include "bindings/arrays.h"
#include "bindings/bindings.h"
#include "kernels/belady.h"
#include "kernels/online_caches.h"

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
    if (length(offsets) == 0) throw std::invalid_argument("offsets must not be empty");
    return length(offsets) - 1;
}

template <class T>
NumpyVector<T> copy_of(const InputArray &array, const char *name, const char *expected) {
    const T *values = input_data<T>(array, name, expected);
    auto copy = pooled_vector<T>(length(array));
    std::copy_n(values, length(array), copy.data());
    return copy;
}

nb::tuple belady(const InputArray &ids, const InputArray &offsets, const InputArray &nodes,
                 const InputArray &frequencies) {
    auto misses = pooled_vector<int64_t>(num_batches_of(offsets));
    check_vector(ids, "ids");
    auto slots = pooled_vector<int32_t>(length(ids));
    auto nodes_after = copy_of<int64_t>(nodes, "nodes", "int64");
    auto frequencies_after = copy_of<int32_t>(frequencies, "frequencies", "int32");
    if (length(nodes) != length(frequencies))
        throw std::invalid_argument("nodes and frequencies must have the same length");
    CacheChanges changes;
    with_trace(ids, offsets, [&](const auto &trace) {
        changes = plan_belady(trace, length(nodes), nodes_after.data(), frequencies_after.data(),
                              slots.data(), misses.data());
    });
    return nb::make_tuple(slots, misses, take_vector(std::move(changes.offsets)),
                          take_vector(std::move(changes.positions)),
                          take_vector(std::move(changes.slots)), nodes_after, frequencies_after);
}

nb::tuple online(const std::string &policy, const InputArray &ids, const InputArray &offsets,
                 const InputArray &nodes, const InputArray &order, const InputArray &visited,
                 int64_t hand) {
    if (policy != "lru" && policy != "sieve")
        throw std::invalid_argument("policy must be 'lru' or 'sieve', got '" + policy + "'");
    auto misses = pooled_vector<int64_t>(num_batches_of(offsets));
    check_vector(ids, "ids");
    auto slots = pooled_vector<int32_t>(length(ids));
    auto nodes_after = copy_of<int64_t>(nodes, "nodes", "int64");
    auto order_after = copy_of<int32_t>(order, "order", "int32");
    auto visited_after = copy_of<uint8_t>(visited, "visited", "uint8");
    if (length(order) != length(nodes) || length(visited) != length(nodes))
        throw std::invalid_argument("nodes, order and visited must have the same length");
    if (hand < -1 || hand >= std::max<int64_t>(length(nodes), 1))
        throw std::invalid_argument("hand must be a slot or -1, got " + std::to_string(hand));
    OnlineState state{nodes_after.data(), order_after.data(), visited_after.data(),
                      static_cast<int32_t>(hand)};
    CacheChanges changes;
    with_trace(ids, offsets, [&](const auto &trace) {
        changes = plan_online(policy == "lru" ? OnlinePolicy::lru : OnlinePolicy::sieve, trace,
                              length(nodes), state, slots.data(), misses.data());
    });
    return nb::make_tuple(slots, misses, take_vector(std::move(changes.offsets)),
                          take_vector(std::move(changes.positions)),
                          take_vector(std::move(changes.slots)), nodes_after, order_after,
                          visited_after, state.hand);
}

}  // namespace

void bind_planning(nb::module_ &m) {
    m.def("plan_belady", belady, "ids"_a.noconvert(), "offsets"_a.noconvert(),
          "nodes"_a.noconvert(), "frequencies"_a.noconvert());
    m.def("plan_online", online, "policy"_a, "ids"_a.noconvert(), "offsets"_a.noconvert(),
          "nodes"_a.noconvert(), "order"_a.noconvert(), "visited"_a.noconvert(), "hand"_a);
}
