// Tables from the nodes of a batch to their local ids, filled while the batch is sampled.
//
// Open addressing with linear probing over at least twice as many slots as nodes. A table is
// a view of memory that the caller owns and sizes to the batch, never to the graph. It is
// cheap to copy, and a loop works on a copy: the compiler then keeps its fields in registers
// where it would have to reload a member after each store to a slot.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>

namespace gnnstore {

// No local id; tables hold fewer nodes than this.
inline constexpr uint32_t no_local_id = 0xFFFFFFFFu;

// The upper bits of a product by the golden ratio spread consecutive ids evenly.
inline constexpr uint64_t hash_multiplier = 0x9E3779B97F4A7C15u;

// Nodes below 2^32 - 1, one tree: 8 bytes a slot, the key above and the local id below, so
// that a probe is one load, and the table of a batch of 10^5 nodes stays close to the core.
class CompactTable {
public:
    using Slot = uint64_t;
    using Key = uint32_t;
    static constexpr uint32_t max_nodes = 0xFFFFFFFFu;  // the key that is left means empty

    static Key key(uint64_t node, uint32_t) { return static_cast<Key>(node); }

    // Takes over memory for num_slots (a power of two above 1) and empties it.
    void reset(void *memory, int64_t num_slots) {
        slots_ = static_cast<Slot *>(memory);
        mask_ = static_cast<uint64_t>(num_slots) - 1;
        shift_ = std::countl_zero(mask_);
        std::memset(memory, 0xFF, static_cast<size_t>(num_slots) * sizeof(Slot));
    }

    void prefetch(Key key) const { __builtin_prefetch(&slots_[home(key)], 1); }

    // The local id of key, which becomes next_id if the key is new. The store is made either
    // way: whether a node is new cannot be predicted, and a store costs less than a branch.
    uint32_t find_or_insert(Key key, uint32_t next_id) {
        Slot &slot = slots_[probe(key)];
        slot = key_of(slot) == key ? slot : static_cast<Slot>(key) << 32 | next_id;
        return static_cast<uint32_t>(slot);
    }

    // The local id of key, or no_local_id (which is what an empty slot holds).
    uint32_t find(Key key) const { return static_cast<uint32_t>(slots_[probe(key)]); }

private:
    static Key key_of(Slot slot) { return static_cast<Key>(slot >> 32); }
    uint64_t home(Key key) const { return key * hash_multiplier >> shift_; }
    uint64_t probe(Key key) const {
        uint64_t i = home(key);
        while (key_of(slots_[i]) != key && key_of(slots_[i]) != max_nodes) i = (i + 1) & mask_;
        return i;
    }

    Slot *slots_ = nullptr;
    uint64_t mask_ = 0;
    int shift_ = 0;
};

// Any node, in any number of trees: 16 bytes a slot.
class WideTable {
public:
    struct Key {
        uint64_t node;
        uint32_t tree;
    };
    struct Slot {
        uint64_t node;
        uint32_t tree;
        uint32_t local_id;
    };

    static Key key(uint64_t node, uint32_t tree) { return {node, tree}; }

    void reset(void *memory, int64_t num_slots) {
        slots_ = static_cast<Slot *>(memory);
        mask_ = static_cast<uint64_t>(num_slots) - 1;
        shift_ = std::countl_zero(mask_);
        std::memset(memory, 0xFF, static_cast<size_t>(num_slots) * sizeof(Slot));
    }

    void prefetch(Key key) const { __builtin_prefetch(&slots_[home(key)], 1); }

    uint32_t find_or_insert(Key key, uint32_t next_id) {
        Slot &slot = slots_[probe(key)];
        slot = {key.node, key.tree, slot.local_id == no_local_id ? next_id : slot.local_id};
        return slot.local_id;
    }

    uint32_t find(Key key) const { return slots_[probe(key)].local_id; }

private:
    // The trees of one node are shifted apart by an odd constant before hashing.
    uint64_t home(Key key) const {
        return (key.node + key.tree * 0xD6E8FEB86659FD93u) * hash_multiplier >> shift_;
    }
    uint64_t probe(Key key) const {
        uint64_t i = home(key);
        while (slots_[i].local_id != no_local_id &&
               (slots_[i].node != key.node || slots_[i].tree != key.tree))
            i = (i + 1) & mask_;
        return i;
    }

    Slot *slots_ = nullptr;
    uint64_t mask_ = 0;
    int shift_ = 0;
};

}  // namespace gnnstore
