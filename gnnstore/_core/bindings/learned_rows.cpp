// Rows that are learned.
#include "kernels/rows/learned_rows.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <optional>

#include "bindings/arrays.h"
#include "bindings/storage.h"

using namespace gnnstore;
using namespace nb::literals;

namespace {

int64_t find_resident_rows(const InputArray &ids, const std::optional<InputArray> &place,
                           int64_t num_nodes, int64_t rows_per_slot, const InputArray &slots,
                           const OutputArray &out) {
    const int64_t *nodes = input_data<int64_t>(ids, "ids", "int64");
    const int32_t *slot_of = input_data<int32_t>(slots, "slots", "int32");
    int64_t *rows = output_data<int64_t>(out, "out", "int64");
    if (length(out) != length(ids)) throw invalid("out must be as long as ids");
    const auto find = [&](const auto *places) {
        const GilRelease release;
        return resident_rows(nodes, length(ids), places, num_nodes, rows_per_slot, slot_of,
                             length(slots), rows);
    };
    if (!place) return find(static_cast<const int64_t *>(nullptr));
    require(length(*place) == num_nodes, "place must have an entry for each node");
    return with_integers(*place, "place", find);
}

Distribution parse_distribution(const std::string &name) {
    if (name == "uniform") return Distribution::uniform;
    if (name == "normal") return Distribution::normal;
    throw invalid("distribution must be 'uniform' or 'normal', got '", name, "'");
}

void make_initial_rows(const InputArray &ids, const OutputArray &out, int64_t dim,
                       const std::string &distribution, float scale, uint64_t seed,
                       int num_threads) {
    float *values = output_data<float>(out, "out", "float32");
    if (length(out) != checked_multiply(length(ids), dim, "out"))
        throw invalid("out must hold a row for each id");
    const Distribution kind = parse_distribution(distribution);
    with_integers(ids, "ids", [&](const auto *nodes) {
        const GilRelease release;
        initial_rows(nodes, length(ids), values, dim, kind, scale, seed, num_threads);
    });
}

UpdateRule parse_rule(const std::string &name) {
    if (name == "sgd") return UpdateRule::sgd;
    if (name == "adagrad") return UpdateRule::adagrad;
    if (name == "rowwise_adagrad") return UpdateRule::rowwise_adagrad;
    if (name == "sparse_adam") return UpdateRule::sparse_adam;
    throw invalid("rule must be 'sgd', 'adagrad', 'rowwise_adagrad' or 'sparse_adam', got '", name,
                  "'");
}

void apply_updates(const OutputArray &table, const InputArray &rows, const InputArray &gradients,
                   int64_t dim, int64_t rows_per_slot, int64_t slot_floats,
                   const std::string &rule, float rate, float eps, float beta1, float beta2,
                   int num_threads) {
    float *slots = output_data<float>(table, "table", "float32");
    const int64_t *changed = input_data<int64_t>(rows, "rows", "int64");
    const float *values = input_data<float>(gradients, "gradients", "float32");
    if (slot_floats < 1) throw invalid("slot_floats must be at least 1");
    const SlotLayout layout{dim, rows_per_slot, slot_floats, length(table) / slot_floats};
    const RowUpdate update{parse_rule(rule), rate, eps, beta1, beta2};
    const GilRelease release;
    update_rows(slots, length(table), layout, changed, length(rows), values, length(gradients),
                update, num_threads);
}

}  // namespace

void bind_learned_rows(nb::module_ &m) {
    m.def("resident_rows", find_resident_rows, "ids"_a.noconvert(), "place"_a.noconvert().none(),
          "num_nodes"_a, "rows_per_slot"_a, "slots"_a.noconvert(), "out"_a.noconvert());
    m.def("initial_rows", make_initial_rows, "ids"_a.noconvert(), "out"_a.noconvert(),
          nb::kw_only(), "dim"_a, "distribution"_a, "scale"_a, "seed"_a, "num_threads"_a = 1);
    m.def("update_rows", apply_updates, "table"_a.noconvert(), "rows"_a.noconvert(),
          "gradients"_a.noconvert(), nb::kw_only(), "dim"_a, "rows_per_slot"_a, "slot_floats"_a,
          "rule"_a, "rate"_a, "eps"_a = 0.0f, "beta1"_a = 0.0f, "beta2"_a = 0.0f,
          "num_threads"_a = 1);
}
