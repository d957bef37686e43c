#include <algorithm>
#include <bit>
#include <cmath>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernels/base/check_ids.h"
#include "kernels/base/errors.h"
#include "kernels/base/parallel.h"
#include "kernels/base/row_copy.h"
#include "kernels/rows/learned_rows.h"

namespace gnnstore {

int64_t SlotLayout::state_floats(UpdateRule rule, int64_t dim) {
    switch (rule) {
        case UpdateRule::sgd: return 0;
        case UpdateRule::rowwise_adagrad: return 1;
        case UpdateRule::adagrad: return dim;
        case UpdateRule::sparse_adam: return 2 * dim;
    }
    return 0;
}

void SlotLayout::check(UpdateRule rule, int64_t num_floats) const {
    if (dim < 1 || rows_per_slot < 1 || num_slots < 0)
        throw invalid("dim and rows_per_slot must be at least 1");
    const int64_t row = checked_add(dim, state_floats(rule, dim), "a row");
    const int64_t used = checked_multiply(rows_per_slot, row, "a slot");
    if (slot_floats < used || num_floats != checked_multiply(num_slots, slot_floats, "the table"))
        throw invalid("the table has ", num_floats, " floats; expected ", num_slots, " slots of at "
                      "least ", used);
}

namespace {

// A row, and where its gradient stands.
struct Use {
    int64_t row, position;
};

// Sorts uses by row; the uses of a row stay in their order. Counting passes over digits, as many as
// the largest row has.
void sort_uses(std::vector<Use> &uses) {
    constexpr int digit_bits = 11;
    constexpr uint64_t mask = (1 << digit_bits) - 1;
    const auto before = [](const Use &a, const Use &b) { return a.row < b.row; };
    if (std::is_sorted(uses.begin(), uses.end(), before)) return;
    const auto largest = std::max_element(uses.begin(), uses.end(), before)->row;
    const auto bits = static_cast<int>(std::bit_width(static_cast<uint64_t>(largest)));
    std::vector<Use> other(uses.size());
    std::vector<int64_t> places(mask + 1);
    for (int shift = 0; shift < bits; shift += digit_bits) {
        std::fill(places.begin(), places.end(), 0);
        for (const Use &use : uses) ++places[static_cast<uint64_t>(use.row) >> shift & mask];
        int64_t sum = 0;
        for (int64_t &place : places) sum += std::exchange(place, sum);
        for (const Use &use : uses)
            other[static_cast<size_t>(places[static_cast<uint64_t>(use.row) >> shift & mask]++)] =
                use;
        uses.swap(other);
    }
}

// The mean of the squares, in an order that vectors can follow: eight sums of every eighth column,
// then those in pairs.
float mean_square(const float *gradient, int64_t dim) {
    float sums[8] = {};
    int64_t column = 0;
    for (; column + 8 <= dim; column += 8)
        for (int lane = 0; lane < 8; ++lane)
            sums[lane] += gradient[column + lane] * gradient[column + lane];
    for (int lane = 0; column < dim; ++column, ++lane)
        sums[lane] += gradient[column] * gradient[column];
    for (int width = 4; width > 0; width /= 2)
        for (int lane = 0; lane < width; ++lane) sums[lane] += sums[lane + width];
    return sums[0] / static_cast<float>(dim);
}

void apply(const RowUpdate &update, int64_t dim, float *row, float *state, const float *gradient) {
    const float rate = update.rate, eps = update.eps;
    switch (update.rule) {
        case UpdateRule::sgd:
            for (int64_t i = 0; i < dim; ++i) row[i] -= rate * gradient[i];
            break;
        case UpdateRule::rowwise_adagrad: {
            *state += mean_square(gradient, dim);
            const float factor = rate / (std::sqrt(*state) + eps);
            for (int64_t i = 0; i < dim; ++i) row[i] -= factor * gradient[i];
            break;
        }
        case UpdateRule::adagrad:
            for (int64_t i = 0; i < dim; ++i) {
                state[i] += gradient[i] * gradient[i];
                row[i] -= rate * (gradient[i] / (std::sqrt(state[i]) + eps));
            }
            break;
        case UpdateRule::sparse_adam: {
            float *const mean = state, *const square = state + dim;
            const float rest1 = 1.0f - update.beta1, rest2 = 1.0f - update.beta2;
            for (int64_t i = 0; i < dim; ++i) {
                mean[i] += rest1 * (gradient[i] - mean[i]);
                square[i] += rest2 * (gradient[i] * gradient[i] - square[i]);
                row[i] -= rate * (mean[i] / (std::sqrt(square[i]) + eps));
            }
            break;
        }
    }
}

}  // namespace

void update_rows(float *table, int64_t num_floats, const SlotLayout &layout, const int64_t *rows,
                 int64_t num_rows, const float *gradients, int64_t num_gradients,
                 const RowUpdate &update, int num_threads) {
    check_num_threads(num_threads);
    layout.check(update.rule, num_floats);
    const int64_t dim = layout.dim;
    const int64_t state_floats = SlotLayout::state_floats(update.rule, dim);
    require(num_gradients == checked_multiply(num_rows, dim, "the gradients"), "expected ",
            num_rows, " gradients of ", dim, " floats, got ", num_gradients, " floats");
    check_ids(rows, num_rows,
              checked_multiply(layout.num_slots, layout.rows_per_slot, "the number of rows"));

    std::vector<Use> uses(static_cast<size_t>(num_rows));
    for (int64_t i = 0; i < num_rows; ++i) uses[static_cast<size_t>(i)] = {rows[i], i};
    sort_uses(uses);
    const Use *const sorted = uses.data();

    const auto values_of = [&](int64_t row) {
        const int64_t slot = row / layout.rows_per_slot;
        return table + slot * layout.slot_floats + (row - slot * layout.rows_per_slot) * dim;
    };
    const auto state_of = [&](int64_t row) {
        const int64_t slot = row / layout.rows_per_slot;
        return table + slot * layout.slot_floats + layout.rows_per_slot * dim +
               (row - slot * layout.rows_per_slot) * state_floats;
    };
    const auto row_bytes = dim * static_cast<int64_t>(sizeof(float));
    const int64_t ahead = std::min<int64_t>(8, rows_ahead(row_bytes));
    const auto prefetch = [&](int64_t use) {
        prefetch_row(reinterpret_cast<const uint8_t *>(values_of(sorted[use].row)), row_bytes);
        prefetch_row(reinterpret_cast<const uint8_t *>(gradients + sorted[use].position * dim),
                     row_bytes);
        if (state_floats) __builtin_prefetch(state_of(sorted[use].row), 1, 2);
    };

    // A task begins with the first use of a row, so that a row belongs to one thread.
    const int64_t uses_per_task = std::max<int64_t>(16, (int64_t{1} << 16) / dim);
    const int64_t num_tasks = num_rows / uses_per_task + (num_rows % uses_per_task != 0);
    const auto begin_of = [&](int64_t task) {
        int64_t begin = std::min(num_rows, task * uses_per_task);
        while (begin > 0 && begin < num_rows && sorted[begin].row == sorted[begin - 1].row) ++begin;
        return begin;
    };
    run_workers(num_threads, num_tasks, [&](TaskQueue &queue) {
        std::vector<float> sum(static_cast<size_t>(dim));
        for (int64_t task; queue.take(task);) {
            const int64_t end = begin_of(task + 1);
            int64_t use = begin_of(task);
            for (int64_t i = use; i < std::min(end, use + ahead); ++i) prefetch(i);
            while (use < end) {
                const int64_t row = sorted[use].row;
                const float *gradient = gradients + sorted[use].position * dim;
                if (use + ahead < end) prefetch(use + ahead);
                int64_t next = use + 1;
                if (next < end && sorted[next].row == row) {
                    std::copy_n(gradient, dim, sum.data());
                    for (; next < end && sorted[next].row == row; ++next) {
                        const float *more = gradients + sorted[next].position * dim;
                        for (int64_t i = 0; i < dim; ++i) sum[static_cast<size_t>(i)] += more[i];
                    }
                    gradient = sum.data();
                }
                apply(update, dim, values_of(row), state_of(row), gradient);
                use = next;
            }
        }
    });
}

}  // namespace gnnstore
