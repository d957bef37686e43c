#include "kernels/next_uses.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <stdexcept>
#include <string>
#include <utility>

#include "kernels/belady.h"
#include "kernels/pooled_array.h"
#include "kernels/relabel.h"
#include "kernels/row_table.h"

namespace gnnstore {
namespace {

// More groups are more than the caches have lines for.
constexpr int max_group_bits = 12;
// Places are wiped for each group: with more ids for each access, hashing costs less.
constexpr int64_t keyed_ids_per_access = 16;
constexpr int64_t hashed_group_accesses = 1 << 14;

class KeyedTable {
public:
    explicit KeyedTable(int64_t num_keys) : num_keys_(num_keys), places_(num_keys) {}

    void start(int64_t) {
        std::memset(places_.data(), 0, static_cast<size_t>(num_keys_) * sizeof(uint32_t));
    }
    uint32_t &at(int64_t key) { return places_[key]; }

private:
    const int64_t num_keys_;
    PooledArray<uint32_t> places_;
};

// Open addressing with linear probing, at most half full.
class HashedTable {
public:
    explicit HashedTable(const RowGroups &groups) : groups_(groups) {}

    void start(int64_t num_accesses) {
        const int64_t expected = std::min(num_accesses, hashed_group_accesses);
        reset(static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(2 * expected + 64))));
    }

    // The value of a row, to be set to something but 0 where it is 0; valid until the next call.
    uint32_t &at(int64_t id) {
        int64_t i = probe(id);
        if (places_[i].value == 0) {
            if (2 * (num_rows_ + 1) > mask_ + 1) {
                grow();
                i = probe(id);
            }
            places_[i].id = id;
            ++num_rows_;
        }
        return places_[i].value;
    }

private:
    struct Place {
        int64_t id;
        uint32_t value;
    };

    int64_t probe(int64_t id) const {
        auto i = static_cast<int64_t>(groups_.mixed_in_group(id) >> shift_);
        while (places_[i].value != 0 && places_[i].id != id) i = (i + 1) & mask_;
        return i;
    }
    void reset(int64_t num_places) {
        if (num_places > capacity_) {
            places_ = PooledArray<Place>();
            places_ = PooledArray<Place>(num_places);
            capacity_ = num_places;
        }
        std::memset(static_cast<void *>(places_.data()), 0,
                    static_cast<size_t>(num_places) * sizeof(Place));
        mask_ = num_places - 1;
        shift_ = std::countl_zero(static_cast<uint64_t>(mask_));
        num_rows_ = 0;
    }
    void grow() {
        const PooledArray<Place> old = std::exchange(places_, PooledArray<Place>());
        const int64_t num_rows = num_rows_, old_places = mask_ + 1;
        capacity_ = 0;
        reset(2 * old_places);
        for (int64_t i = 0; i < old_places; ++i)
            if (old[i].value != 0) places_[probe(old[i].id)] = old[i];
        num_rows_ = num_rows;
    }

    const RowGroups groups_;
    PooledArray<Place> places_;
    int64_t capacity_ = 0;
    int64_t mask_ = 0;
    int64_t num_rows_ = 0;
    int shift_ = 0;
};

}  // namespace

RowGroups::RowGroups(int64_t largest, int64_t num_accesses) {
    const int64_t last_group = std::max<int64_t>(largest, 0) >> key_bits;
    has_keys_ = last_group >> max_group_bits == 0 && largest / keyed_ids_per_access < num_accesses;
    if (has_keys_) {
        multiplier_ = uint64_t{1} << (64 - key_bits - max_group_bits);
        shift_ = 64 - max_group_bits;
        key_mask_ = ~uint32_t{0} << (32 - key_bits);
        num_keys_ = std::min<int64_t>(int64_t{1} << key_bits, largest + 1);
        num_groups_ = last_group + 1;
    } else {
        const auto wanted = static_cast<uint64_t>(num_accesses / hashed_group_accesses);
        // At least two groups, since a shift by all 64 bits is none.
        const int bits = std::clamp(static_cast<int>(std::bit_width(wanted)), 1, max_group_bits);
        multiplier_ = hash_multiplier;
        shift_ = 64 - bits;
        key_mask_ = 0;
        num_groups_ = int64_t{1} << bits;
    }
}

template <class Id>
NextUses<Id>::NextUses(const Trace<Id> &trace, const TracePositions &positions, int64_t num_slots,
                       const int64_t *nodes, const int32_t *frequencies, int32_t *uses,
                       int64_t *misses)
    : trace_(trace),
      positions_(positions),
      nodes_(nodes),
      frequencies_(frequencies),
      num_slots_(num_slots),
      groups_(std::max(largest_id(trace.ids, trace.num_ids),
                       num_slots == 0 ? -1 : *std::max_element(nodes, nodes + num_slots)),
              trace.num_ids + num_slots),
      uses_(uses),
      ends_(static_cast<size_t>(groups_.num_groups()), 0),
      carried_ends_(static_cast<size_t>(groups_.num_groups()), 0) {
    fill_groups();
    if (groups_.has_keys()) {
        KeyedTable table(groups_.num_keys());
        link(table, [](uint32_t value, int64_t) { return int64_t{value >> window_bits}; }, misses);
    } else {
        HashedTable table(groups_);
        link(table, [&](uint32_t, int64_t k) { return static_cast<int64_t>(trace_.ids[k]); },
             misses);
    }
    window_begins_ = {};
}

template <class Id>
void NextUses<Id>::fill_groups() {
    const RowGroups groups = groups_;  // a copy: stores cannot change it, it stays in registers
    const int64_t num_groups = groups.num_groups();
    uint32_t *const ends = ends_.data(), *const carried_ends = carried_ends_.data();
    int32_t *const uses = uses_;
    const auto begin_at = [&](uint32_t *counts, int64_t begin) {
        auto place = static_cast<uint32_t>(begin);
        for (int64_t group = 0; group < num_groups; ++group)
            place += std::exchange(counts[group], place);
    };
    for (int64_t slot = 0; slot < num_slots_; ++slot)
        if (nodes_[slot] >= 0) ++carried_ends[groups.group(nodes_[slot])];
    begin_at(carried_ends, 0);
    for (int64_t slot = 0; slot < num_slots_; ++slot)
        if (nodes_[slot] >= 0)
            uses[carried_ends[groups.group(nodes_[slot])]++] = static_cast<int32_t>(slot);

    const Id *const ids = trace_.ids;
    for (int64_t k = 0; k < trace_.num_ids; ++k) ++ends[groups.group(ids[k])];
    begin_at(ends, num_slots_);
    const int64_t window = int64_t{1} << window_bits;
    window_begins_.reserve(
        static_cast<size_t>((trace_.num_ids + window - 1) / window * num_groups));
    for (int64_t begin = 0; begin < trace_.num_ids; begin += window) {
        window_begins_.insert(window_begins_.end(), ends, ends + num_groups);
        const int64_t end = std::min(begin + window, trace_.num_ids);
        for (int64_t k = begin; k < end; ++k) {
            const int64_t place = ends[groups.group(ids[k])]++;
            uses[place] =
                static_cast<int32_t>(groups.high_key(ids[k]) | static_cast<uint32_t>(k - begin));
            prefetch_place(uses, place + line);
        }
    }
}

// Where a group's row was met last is where its next use is to be written. In the table, places
// count from 1.
template <class Id>
template <class Table, class KeyAt>
void NextUses<Id>::link(Table &table, const KeyAt &key_at, int64_t *misses) {
    const int64_t *const offsets = trace_.offsets;
    const int64_t num_groups = groups_.num_groups();
    const auto num_windows = static_cast<int64_t>(window_begins_.size()) / num_groups;
    int32_t *const uses = uses_ - 1;
    int64_t carried = 1, place = num_slots_ + 1;
    for (int64_t group = 0; group < num_groups; ++group) {
        const int64_t carried_end = int64_t{carried_ends_[static_cast<size_t>(group)]} + 1;
        const int64_t end = int64_t{ends_[static_cast<size_t>(group)]} + 1;
        if (carried == carried_end && place == end) continue;
        table.start(carried_end - carried + end - place);
        for (; carried < carried_end; ++carried) {
            const int32_t slot = uses[carried];
            const int64_t node = nodes_[slot];
            uint32_t &last = table.at(groups_.has_keys() ? int64_t{RowGroups::key(node)} : node);
            if (last != 0)
                throw std::invalid_argument("nodes must be distinct, but " + std::to_string(node) +
                                            " stands there twice, at last in slot " +
                                            std::to_string(slot));
            last = static_cast<uint32_t>(carried);
            uses[carried] = -std::min(frequencies_[slot], max_frequency);
        }
        int64_t batch = 0, batch_end = 0, batch_place = place, gaps = 0;
        for (int64_t window = 0; window < num_windows; ++window) {
            const int64_t begin = window << window_bits;
            const auto following = static_cast<size_t>((window + 1) * num_groups + group);
            const int64_t window_end =
                window + 1 < num_windows ? int64_t{window_begins_[following]} + 1 : end;
            for (; place < window_end; ++place) {
                const auto value = static_cast<uint32_t>(uses[place]);
                const int64_t k = begin + (value & ((uint32_t{1} << window_bits) - 1));
                if (k >= batch_end) {
                    batch = std::upper_bound(offsets + batch, offsets + trace_.num_batches, k) -
                            offsets - 1;
                    batch_end = offsets[batch + 1];
                    batch_place = place;
                    gaps = positions_.begin(batch) - offsets[batch];
                }
                uint32_t &found = table.at(key_at(value, k));
                const int64_t last = std::exchange(found, static_cast<uint32_t>(place));
                // Where there is none, its own place, which is written next. Without branches:
                // whether a row was met before cannot be predicted.
                const int64_t is_met = -static_cast<int64_t>(last != 0);
                const int64_t written = place ^ ((place ^ last) & is_met);
                int32_t frequency = -uses[written] & static_cast<int32_t>(is_met);
                uses[written] = static_cast<int32_t>(k + gaps);
                if (last >= batch_place) [[unlikely]] {
                    --misses[batch];
                    --frequency;
                }
                uses[place] = -std::min(frequency + 1, max_frequency);
            }
        }
    }
}

template class NextUses<int32_t>;
template class NextUses<int64_t>;

}  // namespace gnnstore
