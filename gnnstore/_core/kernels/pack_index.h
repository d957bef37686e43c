// Which rows of a batch are packed, and where each of them goes: the misses of a plan,
// inverted. Rows are packed in the order of the table, so the positions of a batch, sorted by
// row, are all that packing and reading back need: the k-th packed row is the row of the k-th
// position. `gnnstore.testing.packing` defines the result.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/errors.h"

namespace gnnstore {

// The accesses of some batches, and which of them missed (slots[k] < 0).
template <class Id>
struct Misses {
    const Id *ids;
    const int32_t *slots;
    int64_t num_accesses;
    const int64_t *offsets;  // [num_batches + 1]
    int64_t num_batches;
};

// Throws std::invalid_argument unless offsets ascend from 0 to num_accesses and batches have
// fewer than 2^31 accesses.
void check_offsets(const int64_t *offsets, int64_t num_batches, int64_t num_accesses);

// Writes where the missed accesses of each batch begin among those of all: [num_batches + 1].
void count_misses(const int32_t *slots, const int64_t *offsets, int64_t num_batches,
                  int64_t *begins);

// Fills `positions` (as long as begins[num_batches] says). From begins[i] on stand the
// positions in batch i of its num_rows[i] distinct missed rows, in the order of the table, each
// the row's first in the batch; then those of its other missed accesses. Returns, for these,
// batch by batch, the position of the same row among the first.
template <class Id>
std::vector<int32_t> index_misses(const Misses<Id> &misses, int64_t num_rows_in_table,
                                  const int64_t *begins, int32_t *positions, int64_t *num_rows,
                                  int num_threads);

// What packing needs of that, read with care: it comes from Python.
template <class Id>
struct PackIndex {
    const Id *ids;
    const int64_t *offsets;
    const int32_t *positions;
    const int64_t *begins;
    const int64_t *num_rows;
    int64_t num_batches;

    // The k-th packed row of a batch.
    int64_t row(int64_t batch, int64_t k) const {
        const int64_t position = positions[begins[batch] + k];
        if (position < 0 || position >= offsets[batch + 1] - offsets[batch])
            throw std::out_of_range("position " + std::to_string(position) +
                                    " is outside batch " + std::to_string(batch));
        return ids[offsets[batch] + position];
    }
    // Among its packed rows from k on, the first that is not below `bound`.
    int64_t lower_bound(int64_t batch, int64_t k, int64_t bound) const {
        int64_t size = num_rows[batch] - k;
        while (size > 0) {
            const int64_t half = size / 2;
            if (row(batch, k + half) < bound) {
                k += half + 1;
                size -= half + 1;
            } else {
                size = half;
            }
        }
        return k;
    }
};

}  // namespace gnnstore
