// Next uses from a table of nodes, for traces that are looked at batch by batch: first forward, to
// learn how many batches need each node, then backward, to learn where it is needed next.
//
// A table of all nodes may be larger than what there is to spare. It then serves a range of them
// at a time, and the trace is gone through again for each range. Tables of several ranges may be
// used by as many threads at once.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>

#include "kernels/base/errors.h"
#include "kernels/traces/access_lists.h"
#include "kernels/traces/superbatch.h"

namespace gnnstore {

class UseTable {
public:
    // Serves nodes from `first` on; values [count] is memory whose contents do not matter.
    UseTable(uint32_t *values, int64_t first, int64_t count)
        : values_(values), first_(first), count_(count) {}

    // First: the rows in slots, and how many batches needed them.
    void start(const int64_t *nodes, const int32_t *frequencies, int64_t num_slots) {
        std::fill_n(values_, count_, 0);
        for_served<false>(nodes, num_slots, [&](int64_t slot, uint32_t &value) {
            require(value == 0, "nodes must be distinct, but ", nodes[slot], " stands there twice, "
                    "at last in slot ", slot);
            value = counted(static_cast<uint32_t>(std::min(frequencies[slot], max_frequency)), 0);
        });
    }

    // Then the batches from the first to the last. Returns how many accesses are repeated in it.
    template <class Id>
    int64_t count(int64_t batch, const Id *ids, int64_t size) {
        // Which batch counted a node last is kept in few bits: they are wiped before they begin
        // anew.
        if (batch > 0 && batch % max_mark == 0)
            for (int64_t i = 0; i < count_; ++i) values_[i] &= ~max_mark;
        const auto mark = static_cast<uint32_t>(batch % max_mark + 1);
        int64_t num_repeated = 0;
        for_served<false>(ids, size, [&](int64_t, uint32_t &value) {
            const uint32_t is_repeated = (value & max_mark) == mark;
            num_repeated += is_repeated;
            const uint32_t frequency = (value >> mark_bits) + 1 - is_repeated;
            value = counted(std::min<uint32_t>(frequency, max_frequency), mark);
        });
        return num_repeated;
    }

    // Then the batches from the last to the first: puts the next uses of those accesses that are
    // served into next [size], the negative frequency where there is none, and calls see(it) for
    // each. first_position: of the batch.
    template <class Id, class See>
    void link(const Id *ids, int64_t size, int32_t first_position, int32_t *next, const See &see) {
        for_served<true>(ids, size, [&](int64_t i, uint32_t &value) {
            const int32_t use = next_use(value);
            next[i] = use;
            see(use);
            value = is_linked | static_cast<uint32_t>(first_position + static_cast<int32_t>(i));
        });
    }

    // At last the first uses of the rows in slots.
    void finish(const int64_t *nodes, int64_t num_slots, int32_t *first_uses) {
        for_served<false>(nodes, num_slots, [&](int64_t slot, uint32_t &value) {
            first_uses[slot] = next_use(value);
        });
    }

private:
    // A value is a frequency, and which batch counted it last, until an access is linked to the
    // one behind it: then it is the position of this.
    static constexpr int mark_bits = 15;
    static constexpr uint32_t max_mark = (uint32_t{1} << mark_bits) - 1;
    static constexpr uint32_t is_linked = uint32_t{1} << 31;
    static_assert((static_cast<uint64_t>(max_frequency) << mark_bits | max_mark) < is_linked);

    static uint32_t counted(uint32_t frequency, uint32_t mark) {
        return frequency << mark_bits | mark;
    }

    static int32_t next_use(uint32_t value) {
        return (value & is_linked) != 0 ? static_cast<int32_t>(value & ~is_linked)
                                        : -static_cast<int32_t>(value >> mark_bits);
    }

    // Calls use(i, value of ids[i]) for those that are served. The table is much larger than the
    // caches, so what a block needs of it is asked for while the block before is looked at.
    template <bool from_last, class Id, class Use>
    void for_served(const Id *ids, int64_t size, const Use &use) {
        Served<from_last, Id> served(*this, ids, size);
        Block blocks[2];
        served.take(blocks[0]);
        for (int64_t b = 0; blocks[b % 2].size > 0; ++b) {
            served.take(blocks[(b + 1) % 2]);
            const Block &block = blocks[b % 2];
            for (int32_t j = 0; j < block.size; ++j) use(block.found[j], values_[block.places[j]]);
        }
    }

    // About as many as a core has reads of memory under way at a time.
    static constexpr int32_t block_size = 48;

    struct Block {
        int32_t size;
        int64_t found[block_size];
        int64_t places[block_size];  // in the table
    };

    // Those ids of an array that are served. They cannot be predicted, so they are listed without
    // branches; and from many ids at a time, so that blocks are full where few are served.
    template <bool from_last, class Id>
    class Served {
    public:
        Served(const UseTable &table, const Id *ids, int64_t size)
            : table_(table), ids_(ids), size_(size), end_(from_last ? size : 0) {}

        // Fills a block with the next of them, and asks for their values.
        void take(Block &block) {
            block.size = 0;
            while (block.size < block_size && (num_taken_ < num_listed_ || list())) {
                const int32_t count = std::min(block_size - block.size, num_listed_ - num_taken_);
                for (int32_t j = 0; j < count; ++j) {
                    const int32_t k = num_taken_ + j;
                    const int64_t i = begin_ + listed_[from_last ? num_listed_ - 1 - k : k];
                    const int64_t place = static_cast<int64_t>(ids_[i]) - table_.first_;
                    block.found[block.size + j] = i;
                    block.places[block.size + j] = place;
                    // Into the second cache, which can wait for more of them than the first: 10.5
                    // instead of 12 ns an access.
                    __builtin_prefetch(table_.values_ + place, 1, 2);
                }
                num_taken_ += count;
                block.size += count;
            }
        }

    private:
        // Lists the entries of the next ids; false after the last id.
        bool list() {
            if (from_last ? end_ == 0 : end_ == size_) return false;
            begin_ = from_last ? std::max<int64_t>(end_ - list_block, 0) : end_;
            const int64_t end = from_last ? end_ : std::min<int64_t>(end_ + list_block, size_);
            num_listed_ = table_.list(ids_ + begin_, static_cast<int32_t>(end - begin_), listed_);
            num_taken_ = 0;
            end_ = from_last ? begin_ : end;
            return true;
        }

        const UseTable &table_;
        const Id *const ids_;
        const int64_t size_;
        int64_t begin_ = 0, end_;  // of those that are listed; where the next ones end, or begin
        int32_t num_listed_ = 0, num_taken_ = 0;
        int32_t listed_[list_block + list_slack];  // behind begin_
    };

    int32_t list(const int32_t *ids, int32_t size, int32_t *found) const {
        constexpr int64_t largest = std::numeric_limits<int32_t>::max();
        return list_between(ids, size, static_cast<int32_t>(first_),
                            static_cast<int32_t>(std::min(first_ + count_ - 1, largest)), found);
    }

    int32_t list(const int64_t *ids, int32_t size, int32_t *found) const {
        int32_t num_found = 0;
        for (int32_t i = 0; i < size; ++i) {
            found[num_found] = i;
            num_found += (ids[i] >= first_) & (ids[i] < first_ + count_);
        }
        return num_found;
    }

    uint32_t *values_;
    int64_t first_, count_;
};

}  // namespace gnnstore
