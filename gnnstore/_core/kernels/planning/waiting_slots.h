// Slots that wait for the batch that reads them. Written to where that batch has its accesses,
// each would be a write to some place in the whole trace; put behind those that wait for the same
// batch, they are written and read in order, and there are never more of them than slots.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "kernels/traces/access_lists.h"

namespace gnnstore {

// A list for each batch; a list is a chain of chunks.
class WaitingSlots {
public:
    struct Entry {
        int32_t position, slot;
    };

    // So many entries are enough for num_slots at a time.
    static int64_t num_entries(int64_t num_batches, int64_t num_slots) {
        return num_chunks(num_batches, num_slots) << chunk_bits(num_batches);
    }

    WaitingSlots(int64_t num_batches, int64_t num_slots, Entry *entries)
        : chunk_bits_(chunk_bits(num_batches)),
          chunk_mask_((uint32_t{1} << chunk_bits_) - 1),
          entries_(entries),
          ends_(static_cast<size_t>(num_batches), 0),
          before_(static_cast<size_t>(num_chunks(num_batches, num_slots))),
          free_(before_.size()) {
        // The last is started first; the first, which would end lists at 0, never.
        for (size_t chunk = 0; chunk < free_.size(); ++chunk)
            free_[chunk] = static_cast<uint32_t>(free_.size() - chunk);
        free_.front() = 0;
    }

    // Adds a slot to the list of a batch.
    void put(int64_t batch, int32_t position, int32_t slot) {
        entries_[next_place(ends_.data(), chunk_mask_, batch)] = {position, slot};
    }

    // Adds `count` of them, at most block_size: batch_of(j) and entry_of(j) are the j-th. All
    // places are found before the first is written to: a core does not read where a list ends
    // while it does not know yet where the writes before go.
    template <class BatchOf, class EntryOf>
    void put_block(int64_t count, const BatchOf &batch_of, const EntryOf &entry_of) {
        uint32_t places[block_size];
        uint32_t *const ends = ends_.data();
        const uint32_t mask = chunk_mask_;
        for (int64_t j = 0; j < count; ++j) places[j] = next_place(ends, mask, batch_of(j));
        Entry *const entries = entries_;
        for (int64_t j = 0; j < count; ++j) entries[places[j]] = entry_of(j);
    }
    static constexpr int64_t block_size = list_block;

    // Entries that were taken from a list.
    class Chain {
        friend class WaitingSlots;
        uint32_t end = 0;  // 0: there are none
    };

    // Takes all that the list of a batch has by now, to be forgotten at last. There are at most two
    // chains at a time.
    Chain take(int64_t batch) {
        Chain chain;
        chain.end = std::exchange(ends_[static_cast<size_t>(batch)], 0);
        return chain;
    }

    // Puts them where their batch has its accesses, the first at first_position. Another thread may
    // do so while this one adds.
    void put_slots(Chain chain, int32_t first_position, int32_t *slots) const {
        for (uint32_t end = chain.end; end != 0;) {
            const uint32_t chunk = (end - 1) >> chunk_bits_;
            const uint32_t before = before_[chunk];
            if (before != 0) prefetch((before - 1) >> chunk_bits_);
            for (uint32_t i = chunk << chunk_bits_; i < end; ++i)
                slots[entries_[i].position - first_position] = entries_[i].slot;
            end = before;
        }
    }

    void forget(Chain chain) {
        while (chain.end != 0) {
            const uint32_t chunk = (chain.end - 1) >> chunk_bits_;
            free_.push_back(chunk);
            chain.end = before_[chunk];
        }
    }

private:
    // Chunks that are partly filled take 256 KiB at most, up to some thousand batches.
    static int chunk_bits(int64_t num_batches) {
        const int64_t size = 32768 / std::max<int64_t>(num_batches, 1);
        return std::bit_width(static_cast<uint64_t>(std::clamp<int64_t>(size, 4, 128))) - 1;
    }

    static int64_t num_chunks(int64_t num_batches, int64_t num_slots) {
        // One chunk of each list and of two chains is partly filled.
        return (num_slots >> chunk_bits(num_batches)) + std::min(num_batches, num_slots) + 3;
    }

    uint32_t next_place(uint32_t *ends, uint32_t mask, int64_t batch) {
        uint32_t end = ends[batch];
        if ((end & mask) == 0) [[unlikely]]
            end = start_chunk(end);
        ends[batch] = end + 1;
        return end;
    }

    [[gnu::noinline]] uint32_t start_chunk(uint32_t end) {
        const uint32_t chunk = free_.back();
        free_.pop_back();
        prefetch(free_.back());  // the one that is started next
        before_[chunk] = end;
        return chunk << chunk_bits_;
    }

    void prefetch(uint32_t chunk) const {
        const auto *const begin = reinterpret_cast<const char *>(entries_) +
                                  (uint64_t{chunk} << chunk_bits_) * sizeof(Entry);
        for (size_t at = 0; at < sizeof(Entry) << chunk_bits_; at += 64)
            __builtin_prefetch(begin + at, 1);
    }

    const int chunk_bits_;
    const uint32_t chunk_mask_;
    Entry *const entries_;
    std::vector<uint32_t> ends_;    // of each list; 0: it is empty
    std::vector<uint32_t> before_;  // where a chunk's list ended before it
    std::vector<uint32_t> free_;    // chunks, the last first
};

}  // namespace gnnstore
