// What a planner knows of a row while it goes through the batches from the last to the first.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <stdexcept>
#include <string>

#include "kernels/belady.h"

namespace gnnstore {

// In 64 bits: where the row's next use is, and above that how many batches have needed it. 0 is a
// row that was never met, with its next use after the last batch. Twice as many bits made the
// look at the table slower by a third.
class RowState {
public:
    RowState(int64_t num_batches, int64_t longest_batch)
        : num_batches_(static_cast<uint64_t>(num_batches)),
          position_bits_(std::bit_width(static_cast<uint64_t>(longest_batch))),
          frequency_shift_(position_bits_ + std::bit_width(num_batches_)) {
        if (frequency_shift_ > 48)
            throw std::invalid_argument(
                std::to_string(num_batches) + " batches of up to " +
                std::to_string(longest_batch) +
                " rows are too many for one superbatch; plan fewer batches at a time");
    }

    int64_t batch(uint64_t state) const {
        const uint64_t batches = (uint64_t{1} << (frequency_shift_ - position_bits_)) - 1;
        return static_cast<int64_t>(num_batches_ - (state >> position_bits_ & batches));
    }
    int64_t position(uint64_t state) const {
        return static_cast<int64_t>(state & ((uint64_t{1} << position_bits_) - 1));
    }
    int32_t frequency(uint64_t state) const {
        return static_cast<int32_t>(state >> frequency_shift_);
    }
    uint64_t pack(int64_t frequency, int64_t batch, int64_t position) const {
        return static_cast<uint64_t>(std::min<int64_t>(frequency, max_frequency))
                   << frequency_shift_ |
               (num_batches_ - static_cast<uint64_t>(batch)) << position_bits_ |
               static_cast<uint64_t>(position);
    }

private:
    uint64_t num_batches_;
    int position_bits_;
    int frequency_shift_;
};

}  // namespace gnnstore
