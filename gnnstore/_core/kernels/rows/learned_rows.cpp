#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <string>

#include "kernels/base/check_ids.h"
#include "kernels/base/errors.h"
#include "kernels/base/parallel.h"
#include "kernels/base/philox.h"
#include "kernels/rows/learned_rows.h"

namespace gnnstore {

template <class Place>
int64_t resident_rows(const int64_t *ids, int64_t num_ids, const Place *place, int64_t num_nodes,
                      int64_t rows_per_slot, const int32_t *slots, int64_t num_partitions,
                      int64_t *out) {
    if (rows_per_slot < 1) throw invalid("rows_per_slot must be at least 1");
    check_ids(ids, num_ids, num_nodes);
    for (int64_t k = 0; k < num_ids; ++k) {
        const int64_t row = place ? static_cast<int64_t>(place[ids[k]]) : ids[k];
        const int64_t partition = row / rows_per_slot;
        if (row < 0 || partition >= num_partitions)
            throw invalid("node ", ids[k], " is in row ", row, ", beyond the partitions");
        const int64_t slot = slots[partition];
        if (slot < 0) return k;
        out[k] = slot * rows_per_slot + (row - partition * rows_per_slot);
    }
    return num_ids;
}

template int64_t resident_rows(const int64_t *, int64_t, const int32_t *, int64_t, int64_t,
                               const int32_t *, int64_t, int64_t *);
template int64_t resident_rows(const int64_t *, int64_t, const int64_t *, int64_t, int64_t,
                               const int32_t *, int64_t, int64_t *);

namespace {

constexpr uint64_t initial_purpose = 0x656d622d696e6974;  // "emb-init"
constexpr int64_t draws_per_block = 8;                     // of 32 bits

// The eight draws of a block of columns, the lower half of each word first.
void draw(uint32_t draws[draws_per_block], uint64_t block, uint64_t id, uint64_t seed) {
    const uint64_t counter[4] = {block, id, 0, 0}, key[2] = {seed, initial_purpose};
    uint64_t words[4];
    philox4x64_10(words, counter, key);
    for (int i = 0; i < 4; ++i) {
        draws[2 * i] = static_cast<uint32_t>(words[i]);
        draws[2 * i + 1] = static_cast<uint32_t>(words[i] >> 32);
    }
}

void uniform(const uint32_t draws[draws_per_block], float scale, float values[draws_per_block]) {
    for (int64_t i = 0; i < draws_per_block; ++i)
        values[i] = scale * (static_cast<float>(draws[i] >> 8) * 0x1p-23f - 1.0f);
}

// Box and Muller: two draws give two values.
void normal(const uint32_t draws[draws_per_block], float scale, float values[draws_per_block]) {
    for (int64_t i = 0; i < draws_per_block; i += 2) {
        const double radius = std::sqrt(-2.0 * std::log((draws[i] + 1.0) * 0x1p-32));
        const double angle = 2.0 * std::numbers::pi * (draws[i + 1] * 0x1p-32);
        values[i] = scale * static_cast<float>(radius * std::cos(angle));
        values[i + 1] = scale * static_cast<float>(radius * std::sin(angle));
    }
}

}  // namespace

template <class Id>
void initial_rows(const Id *ids, int64_t num_ids, float *out, int64_t dim,
                  Distribution distribution, float scale, uint64_t seed, int num_threads) {
    check_num_threads(num_threads);
    if (dim < 1) throw invalid("dim must be at least 1, got ", dim);
    check_ids(ids, num_ids, std::numeric_limits<int64_t>::max());  // none is negative
    const auto fill = distribution == Distribution::uniform ? uniform : normal;
    const int64_t rows_per_task = std::max<int64_t>(1, (int64_t{1} << 16) / dim);
    const int64_t num_tasks = num_ids / rows_per_task + (num_ids % rows_per_task != 0);
    run_workers(num_threads, num_tasks, [&](TaskQueue &queue) {
        for (int64_t task; queue.take(task);) {
            const int64_t end = std::min(num_ids, (task + 1) * rows_per_task);
            for (int64_t k = task * rows_per_task; k < end; ++k) {
                float *const row = out + k * dim;
                for (int64_t column = 0; column < dim; column += draws_per_block) {
                    uint32_t draws[draws_per_block];
                    float values[draws_per_block];
                    draw(draws, static_cast<uint64_t>(column / draws_per_block),
                         static_cast<uint64_t>(ids[k]), seed);
                    fill(draws, scale, values);
                    std::copy_n(values, std::min(draws_per_block, dim - column), row + column);
                }
            }
        }
    });
}

template void initial_rows(const int32_t *, int64_t, float *, int64_t, Distribution, float,
                           uint64_t, int);
template void initial_rows(const int64_t *, int64_t, float *, int64_t, Distribution, float,
                           uint64_t, int);

}  // namespace gnnstore
