// Tables of the rows of one group, used while next uses are looked for: see NextUses.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <utility>

#include "kernels/base/pooled_array.h"
#include "kernels/traces/next_uses.h"
#include "kernels/traces/superbatch.h"

namespace gnnstore {

// Accesses of a group of ids without keys, about.
inline constexpr int64_t hashed_group_accesses = 1 << 14;

// State of a row while its group goes through the trace from its end: where it is used next, and
// how many batches use it so far. All bits are 0 before it is met.
struct Met {
    // Positions relative to the trace's end, so that 0 is nowhere.
    static constexpr int32_t nowhere = 0, in_a_slot = 1;

    int32_t next;
    uint32_t num_batches;

    bool is_empty() const { return num_batches == 0; }
    int32_t negative_frequency() const {
        return -static_cast<int32_t>(std::min<uint32_t>(num_batches, max_frequency));
    }
};

class KeyedTable {
public:
    using Key = uint32_t;

    explicit KeyedTable(const RowGroups &groups)
        : num_keys_(groups.num_keys()), places_(num_keys_) {}

    void start(int64_t) {
        std::memset(places_.data(), 0, static_cast<size_t>(num_keys_) * sizeof(Met));
    }
    Met &at(Key key) { return places_[key]; }
    int64_t max_rows() const { return num_keys_; }

private:
    const int64_t num_keys_;
    PooledArray<Met> places_;
};

// Open addressing with linear probing, at most half full.
class HashedTable {
public:
    using Key = int64_t;

    explicit HashedTable(const RowGroups &groups) : groups_(groups) {}

    void start(int64_t num_accesses) {
        const int64_t expected = std::min(num_accesses, hashed_group_accesses);
        reset(static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(2 * expected + 64))));
    }

    // The state of a row that is about to be used at least once; valid until the next call.
    Met &at(int64_t id) {
        int64_t i = probe(id);
        if (places_[i].value.is_empty()) {
            if (2 * (num_rows_ + 1) > mask_ + 1) {
                grow();
                i = probe(id);
            }
            places_[i].id = id;
            ++num_rows_;
        }
        return places_[i].value;
    }
    int64_t max_rows() const { return max_trace_ids; }

private:
    struct Place {
        int64_t id;
        Met value;
    };

    int64_t probe(int64_t id) const {
        auto i = static_cast<int64_t>(groups_.mixed_in_group(id) >> shift_);
        while (!places_[i].value.is_empty() && places_[i].id != id) i = (i + 1) & mask_;
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
            if (!old[i].value.is_empty()) places_[probe(old[i].id)] = old[i];
        num_rows_ = num_rows;
    }

    const RowGroups groups_;
    PooledArray<Place> places_;
    int64_t capacity_ = 0;
    int64_t mask_ = 0;
    int64_t num_rows_ = 0;
    int shift_ = 0;
};

// A table, and the accesses whose rows are not used again: how often they are used is known when
// the whole trace was looked at.
template <class Table>
class GroupTable {
public:
    using Key = typename Table::Key;

    struct Last {
        uint32_t place;
        Key key;
    };

    explicit GroupTable(const RowGroups &groups) : table_(groups) {}

    void start(int64_t num_accesses, int64_t num_carried) {
        table_.start(num_accesses + num_carried);
        // One that is written and not counted.
        const int64_t wanted = std::min(num_accesses, table_.max_rows()) + 1;
        if (wanted > capacity_) {
            lasts_ = PooledArray<Last>();
            lasts_ = PooledArray<Last>(wanted);
            capacity_ = wanted;
        }
    }
    Table &table() { return table_; }
    Last *lasts() const { return lasts_.data(); }

private:
    Table table_;
    PooledArray<Last> lasts_;
    int64_t capacity_ = 0;
};

}  // namespace gnnstore
