// Next uses from a table of nodes, for traces that are looked at batch by batch: first forward, to
// learn how many batches need each node, then backward, to learn where it is needed next.
//
// A table of all nodes may be larger than what there is to spare. It then serves a range of them
// at a time, and the trace is gone through again for each range. Tables of several ranges may be
// used by as many threads at once.
#pragma once

#include <algorithm>
#include <cstdint>
#include <stdexcept>
#include <string>

#include "kernels/belady.h"

namespace gnnstore {

class UseTable {
public:
    // Serves nodes from `first` on; values [count] is memory whose contents do not matter.
    UseTable(int32_t *values, int64_t first, int64_t count)
        : values_(values), first_(first), count_(count) {}

    // First: the rows in slots, and how many batches needed them.
    void start(const int64_t *nodes, const int32_t *frequencies, int64_t num_slots) {
        std::fill_n(values_, count_, 0);
        for_served<false>(nodes, num_slots, [&](int64_t slot, int32_t &value) {
            if (value != 0)
                throw std::invalid_argument("nodes must be distinct, but " +
                                            std::to_string(nodes[slot]) +
                                            " stands there twice, at last in slot " +
                                            std::to_string(slot));
            value = counted(static_cast<uint32_t>(std::min(frequencies[slot], max_frequency)), 0);
        });
    }

    // Then the batches from the first to the last. Returns how many accesses are repeated in it.
    template <class Id>
    int64_t count(int64_t batch, const Id *ids, int64_t size) {
        // Which batch counted a node last is kept in few bits: they are wiped before they begin
        // anew.
        if (batch > 0 && batch % num_marks == 0)
            for (int64_t i = 0; i < count_; ++i) values_[i] &= ~int32_t{0xFFFF};
        const auto mark = static_cast<uint32_t>(batch % num_marks + 1);
        int64_t num_repeated = 0;
        for_served<false>(ids, size, [&](int64_t, int32_t &value) {
            const auto before = static_cast<uint32_t>(value);
            const uint32_t is_repeated = (before & 0xFFFF) == mark;
            num_repeated += is_repeated;
            const uint32_t frequency = (before >> 16) + 1 - is_repeated;
            value = counted(std::min<uint32_t>(frequency, max_frequency), mark);
        });
        return num_repeated;
    }

    // Then, once: from now on a value is a next use, or the negative frequency where there is none.
    void turn_back() {
        for (int64_t i = 0; i < count_; ++i)
            values_[i] = -static_cast<int32_t>(static_cast<uint32_t>(values_[i]) >> 16);
    }

    // Then the batches from the last to the first: puts the next uses of those accesses that are
    // served into next [size]. first_position: of the batch.
    template <class Id>
    void link(const Id *ids, int64_t size, int32_t first_position, int32_t *next) {
        for_served<true>(ids, size, [&](int64_t i, int32_t &value) {
            next[i] = value;
            value = first_position + static_cast<int32_t>(i);
        });
    }

    // At last the first uses of the rows in slots.
    void finish(const int64_t *nodes, int64_t num_slots, int32_t *first_uses) {
        for_served<false>(nodes, num_slots,
                          [&](int64_t slot, int32_t &value) { first_uses[slot] = value; });
    }

private:
    static constexpr int64_t num_marks = 0xFFFF;

    static int32_t counted(uint32_t frequency, uint32_t mark) {
        return static_cast<int32_t>(frequency << 16 | mark);
    }

    // Calls use(i, value of ids[i]) for those that are served. The table is much larger than the
    // caches, so what a block needs of it is asked for while the block before is looked at; and
    // which ids are served cannot be predicted, so they are listed without branches.
    template <bool from_last, class Id, class Use>
    void for_served(const Id *ids, int64_t size, const Use &use) {
        Block blocks[2];
        const int64_t num_blocks = (size + block_size - 1) / block_size;
        for (int64_t b = 0; b <= num_blocks; ++b) {
            if (b < num_blocks) {
                const int64_t begin = block_size * (from_last ? num_blocks - 1 - b : b);
                list(ids, begin, std::min(begin + block_size, size), blocks[b % 2]);
            }
            if (b == 0) continue;
            const Block &block = blocks[(b - 1) % 2];
            if constexpr (from_last)
                for (int64_t j = block.size; j-- > 0;)
                    use(block.found[j], values_[block.places[j]]);
            else
                for (int64_t j = 0; j < block.size; ++j)
                    use(block.found[j], values_[block.places[j]]);
        }
    }

    // About as many as a core has reads of memory under way at a time.
    static constexpr int64_t block_size = 48;

    struct Block {
        int64_t size;
        int64_t found[block_size];
        uint64_t places[block_size];  // in the table
    };

    template <class Id>
    void list(const Id *ids, int64_t begin, int64_t end, Block &block) const {
        const auto first = static_cast<uint64_t>(first_), count = static_cast<uint64_t>(count_);
        int64_t size = 0;
        for (int64_t i = begin; i < end; ++i) {
            const uint64_t place = static_cast<uint64_t>(ids[i]) - first;
            block.found[size] = i;
            block.places[size] = place;
            size += place < count;  // a negative id is a huge one here
        }
        // Into the second cache, which can wait for more of them than the first: 10.5 instead of
        // 12 ns an access.
        for (int64_t j = 0; j < size; ++j) __builtin_prefetch(values_ + block.places[j], 1, 2);
        block.size = size;
    }

    int32_t *values_;
    int64_t first_, count_;
};

}  // namespace gnnstore
