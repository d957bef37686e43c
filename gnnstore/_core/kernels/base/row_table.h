// A value for each row that a trace touches, found by the row's id. Memory goes with the rows
// touched, never with the graph: where the ids are dense enough the id is the place, and
// else a hash table grows with what is put in.
//
// A value of 0 means that the row has none yet, so that a fresh table is memory full of zeros.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>
#include <type_traits>

#include "kernels/base/errors.h"
#include "kernels/base/pooled_array.h"
#include "kernels/base/relabel.h"

namespace gnnstore {

// For ids below num_rows: one value each.
template <class Value>
class DirectRows {
public:
    explicit DirectRows(int64_t num_rows) : values_(num_rows) {
        std::memset(values_.data(), 0, static_cast<size_t>(num_rows) * sizeof(Value));
    }

    void prefetch(int64_t id) const { __builtin_prefetch(&values_[id], 1); }
    Value &at(int64_t id) { return values_[id]; }

private:
    PooledArray<Value> values_;
};

// For any ids from 0: open addressing with linear probing, at most half full.
template <class Value>
class HashedRows {
public:
    HashedRows() { reset(first_slots); }

    void prefetch(int64_t id) const { __builtin_prefetch(&slots_[home(id)], 1); }

    // The value of a row, to be set to something but 0 where it is 0; valid until the next call.
    Value &at(int64_t id) {
        int64_t i = probe(id);
        if (slots_[i].value == 0) {
            if (2 * (num_rows_ + 1) > mask_ + 1) {
                grow();
                i = probe(id);
            }
            slots_[i].id = id;
            ++num_rows_;
        }
        return slots_[i].value;
    }

private:
    struct Slot {
        int64_t id;
        Value value;
    };
    static constexpr int64_t first_slots = 1024;

    int64_t home(int64_t id) const {
        return static_cast<int64_t>(static_cast<uint64_t>(id) * hash_multiplier >> shift_);
    }
    int64_t probe(int64_t id) const {
        int64_t i = home(id);
        while (slots_[i].value != 0 && slots_[i].id != id) i = (i + 1) & mask_;
        return i;
    }
    void reset(int64_t num_slots) {
        slots_ = PooledArray<Slot>(num_slots);
        std::memset(static_cast<void *>(slots_.data()), 0,
                    static_cast<size_t>(num_slots) * sizeof(Slot));
        mask_ = num_slots - 1;
        shift_ = std::countl_zero(static_cast<uint64_t>(mask_));
    }
    void grow() {
        const PooledArray<Slot> old = std::move(slots_);
        const int64_t old_slots = mask_ + 1;
        reset(2 * old_slots);
        for (int64_t i = 0; i < old_slots; ++i)
            if (old[i].value != 0) slots_[probe(old[i].id)] = old[i];
    }

    PooledArray<Slot> slots_;
    int64_t mask_ = 0;
    int64_t num_rows_ = 0;
    int shift_ = 0;
};

// The largest of some ids, which must not be negative; -1 if there are none.
template <class Id>
int64_t largest_id(const Id *ids, int64_t num_ids) {
    using Unsigned = std::make_unsigned_t<Id>;
    Unsigned largest = 0;  // a negative id is a huge unsigned one
    for (int64_t k = 0; k < num_ids; ++k)
        largest = std::max(largest, static_cast<Unsigned>(ids[k]));
    if (static_cast<Id>(largest) < 0)
        for (int64_t k = 0; k < num_ids; ++k)
            if (ids[k] < 0)
                throw std::out_of_range("row id " + std::to_string(ids[k]) + " at position " +
                                        std::to_string(k) + " is negative");
    return num_ids == 0 ? -1 : static_cast<int64_t>(largest);
}

// Calls use(table) with an empty table for ids up to `largest` that sees num_accesses of them.
template <class Value, class Use>
auto with_row_table(int64_t largest, int64_t num_accesses, const Use &use) {
    // 2 direct values an access take no more memory than a hash table of which each row is needed
    // three times, and planning by them takes three quarters of the time.
    constexpr int64_t direct_values_per_access = 2;
    if (largest / direct_values_per_access < num_accesses) {
        DirectRows<Value> table(largest + 1);
        return use(table);
    }
    HashedRows<Value> table;
    return use(table);
}

}  // namespace gnnstore
