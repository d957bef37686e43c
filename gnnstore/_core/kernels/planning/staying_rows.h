// The rows that stay in the cache to the end of a superbatch although nothing is known of their
// next use: those that the most batches needed, and among equals those used last, as far as slots
// are free from their last use on.
//
// Slots that are free from a batch on are free from later ones on too, so once a batch finds none
// for a row, it finds none for rows of lower frequency. The rows of a batch that stay are therefore
// told by one frequency, and by how many rows of just this one stay. To find it, rows are counted
// by batch and frequency; none of them need be listed.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "kernels/planning/belady.h"
#include "kernels/planning/free_places.h"
#include "kernels/traces/scan_uses.h"

namespace gnnstore {

class StayingRows {
public:
    // So many rows of a batch with one frequency. Larger counts are told in several.
    struct Count {
        int32_t batch;  // where they are used last; -1: before the first batch
        uint16_t frequency, num_rows;
    };

    // Rows of higher frequencies stay, and the first num_rows of this one.
    struct Threshold {
        int32_t frequency = max_frequency + 1;
        int32_t num_rows = 0;
    };

    // The number of counts that are enough: one for each slot, and one batch's.
    static int64_t num_counts(int64_t num_slots) { return num_slots + (int64_t{1} << 17); }

    // counts [num_counts] is memory that is free again after thresholds(). free_from: the places
    // are batches, counted from the last (0) to what is before the first (num_batches).
    StayingRows(int64_t num_batches, int64_t num_slots, Count *counts, FreePlaces free_from)
        : num_batches_(num_batches),
          capacity_(num_counts(num_slots)),
          counts_(counts),
          free_from_(std::move(free_from)),
          by_frequency_(max_frequency + 1, 0) {}

    // Counts the rows of a batch that are not used again; batches come from the last to the first.
    void count(int64_t batch, const int32_t *next, int64_t size) {
        for_not_used_again(next, size, 0, [&](int64_t, int32_t frequency) {
            if (by_frequency_.data()[frequency]++ == 0)
                frequencies_.push_back(static_cast<uint16_t>(frequency));
        });
        for (const uint16_t frequency : frequencies_) {
            uint32_t left = std::exchange(by_frequency_[frequency], 0);
            while (left > 0) {
                if (num_counts_ == capacity_) drop_what_cannot_stay();
                const uint32_t part = std::min<uint32_t>(left, 0xFFFF);
                counts_[num_counts_++] = {static_cast<int32_t>(batch), frequency,
                                          static_cast<uint16_t>(part)};
                left -= part;
            }
        }
        frequencies_.clear();
    }

    // Return the thresholds of each batch from `first` on, and last the carried rows'.
    std::vector<Threshold> thresholds() {
        std::vector<Threshold> found(static_cast<size_t>(num_batches_) + 1);
        share_out([&](const Count &count, int64_t taken) {
            Threshold &of = found[static_cast<size_t>(count.batch < 0 ? num_batches_
                                                                      : count.batch)];
            of.num_rows = static_cast<int32_t>(taken) +
                          (of.frequency == count.frequency ? of.num_rows : 0);
            of.frequency = count.frequency;
        });
        return found;
    }

private:
    // Calls use(count, how many rows of it stay) for each count with rows that stay.
    template <class Use>
    void share_out(const Use &use) {
        std::sort(counts_, counts_ + num_counts_, [](const Count &a, const Count &b) {
            return a.frequency != b.frequency ? a.frequency > b.frequency : a.batch > b.batch;
        });
        FreePlaces left = free_from_;
        for (int64_t i = 0; i < num_counts_; ++i) {
            const Count count = counts_[i];
            const int64_t taken = left.take(num_batches_ - 1 - count.batch, count.num_rows);
            if (taken > 0) use(count, taken);
        }
    }

    // Drops rows that find no slot among those counted so far: they will find none among all. At
    // most one count for each slot is left.
    void drop_what_cannot_stay() {
        int64_t num_left = 0;
        share_out([&](const Count &count, int64_t) { counts_[num_left++] = count; });
        num_counts_ = num_left;
    }

    const int64_t num_batches_;
    const int64_t capacity_;
    Count *const counts_;
    int64_t num_counts_ = 0;
    const FreePlaces free_from_;
    std::vector<uint32_t> by_frequency_;  // rows of the batch that is counted
    std::vector<uint16_t> frequencies_;   // those that are not 0 there
};

}  // namespace gnnstore
