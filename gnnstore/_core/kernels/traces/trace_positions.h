// Positions of accesses that tell at once which batch they belong to: each batch begins a new
// block of positions, so that a table of blocks finds it without a comparison.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <vector>

#include "kernels/traces/superbatch.h"

namespace gnnstore {

// Accesses of a batch, counted in two places: many in turn may belong to the same batch, and each
// count would wait for the one before.
struct UsesInBatch {
    uint32_t even = 0, odd = 0;

    int64_t all() const { return int64_t{even} + odd; }
};

class TracePositions {
public:
    TracePositions(const int64_t *offsets, int64_t num_batches)
        : offsets_(offsets), shift_(block_shift(offsets[num_batches], num_batches)) {
        const int64_t block = int64_t{1} << shift_;
        begins_.reserve(static_cast<size_t>(num_batches) + 1);
        int64_t begin = 0;
        for (int64_t batch = 0; batch < num_batches; ++batch) {
            begins_.push_back(static_cast<int32_t>(begin));
            const int64_t size = offsets[batch + 1] - offsets[batch];
            begin += (size + block - 1) / block * block;
        }
        begins_.push_back(static_cast<int32_t>(begin));
        batches_.reserve(static_cast<size_t>(begin >> shift_) + 1);
        for (int64_t batch = 0; batch < num_batches; ++batch)
            batches_.resize(static_cast<size_t>(this->begin(batch + 1) >> shift_),
                            static_cast<int32_t>(batch));
        batches_.push_back(static_cast<int32_t>(num_batches));
    }

    // The first position of a batch; batch num_batches stands behind all others.
    int32_t begin(int64_t batch) const { return begins_[static_cast<size_t>(batch)]; }
    int32_t end() const { return begins_.back(); }
    int64_t batch(int32_t position) const { return batches().of(position); }

    // A caller with many positions copies it: other writes cannot change a copy, so that it stays
    // in registers.
    class Batches {
    public:
        Batches(const int32_t *batches, int shift) : batches_(batches), shift_(shift) {}
        int64_t of(int32_t position) const { return batches_[position >> shift_]; }

    private:
        const int32_t *batches_;
        int shift_;
    };
    Batches batches() const { return {batches_.data(), shift_}; }

    // Adds next uses to `uses` [num_batches + 1] by their batches; negative ones, which are none, to
    // the last one.
    void count(const int32_t *next, int64_t size, UsesInBatch *uses) const {
        const Batches batches = this->batches();
        const int32_t end = this->end();
        const auto batch_of = [&](int32_t use) { return batches.of(use < 0 ? end : use); };
        int64_t k = 0;
        for (; k + 1 < size; k += 2) {
            ++uses[batch_of(next[k])].even;
            ++uses[batch_of(next[k + 1])].odd;
        }
        if (k < size) ++uses[batch_of(next[k])].even;
    }

private:
    // About 8 blocks for a batch, whose table stays in a core's first cache; fewer would leave
    // gaps for which there may be too few positions.
    static int block_shift(int64_t num_ids, int64_t num_batches) {
        const int64_t gap = (max_trace_ids - num_ids) / std::max<int64_t>(num_batches, 1);
        const int64_t wanted = num_ids / std::max<int64_t>(8 * num_batches, 1);
        return std::bit_width(static_cast<uint64_t>(std::clamp<int64_t>(wanted, 1, gap + 1))) - 1;
    }

    const int64_t *const offsets_;
    const int shift_;
    std::vector<int32_t> begins_;
    std::vector<int32_t> batches_;  // of each block
};

}  // namespace gnnstore
