// Draws of the positions of a node's in-neighbour list that a hop takes.
//
// Draws are keyed, not streamed: they depend on (seed, epoch, batch, hop, tree, node) and on
// nothing else, so a batch is the same whichever thread samples it and whatever was sampled
// before. The tree is the seed index of a disjoint batch, and 0 otherwise.
#pragma once

#include <cstdint>

#include "kernels/base/philox.h"
#include "kernels/base/pooled_array.h"

namespace gnnstore {

struct DrawKey {
    uint64_t seed = 0;
    uint64_t epoch = 0;
    uint64_t batch = 0;
};

// The 64-bit draws of one node in one hop, in the order of numpy.random.Philox(
// key=[seed, epoch], counter=[0, node, hop | type << 8 | tree << 32, batch]).random_raw(). The
// edge type is part of the argument `hop`; it is 0 in a graph of one type.
class NodeDraws {
public:
    NodeDraws(const DrawKey &key, uint64_t node, uint32_t hop, uint32_t tree)
        : key_{key.seed, key.epoch},
          counter_{0, node, hop | static_cast<uint64_t>(tree) << 32, key.batch} {}

    // A draw from [0, bound). Multiply-high needs no division and no retry; its bias, at
    // most bound / 2^64, is beyond any test even at degrees of 2^33.
    uint64_t below(uint64_t bound) {
        if (num_left_ == 0) {
            ++counter_[0];
            philox4x64_10(block_, counter_, key_);
            num_left_ = 4;
        }
        uint64_t low;
        return multiply_high(block_[4 - num_left_--], bound, low);
    }

private:
    uint64_t key_[2];
    uint64_t counter_[4];
    uint64_t block_[4];
    int num_left_ = 0;
};

// A list of in-neighbours: where it starts in indices, its length, and how many of its edges must
// not be drawn.
struct NeighborList {
    int64_t start;
    int64_t degree;
    int64_t num_excluded = 0;

    int64_t num_eligible() const { return degree - num_excluded; }
};

// Throws std::invalid_argument unless fanout is -1 or in [0, 2^31).
void check_fanout(int64_t fanout);

// How many of degree in-neighbours a fan-out takes; -1 takes all.
inline int64_t num_chosen(int64_t degree, int64_t fanout, bool replace) {
    if (fanout < 0 || degree == 0) return degree;
    return replace || fanout < degree ? fanout : degree;
}

// Chooses positions in lists; keeps the scratch memory that large fan-outs need.
class PositionChooser {
public:
    // Writes num_chosen(...) positions in [start, start + degree). The whole list is taken in
    // its own order and without a draw.
    void choose(const DrawKey &key, uint64_t node, uint32_t hop, uint32_t tree, NeighborList list,
                int64_t fanout, bool replace, int64_t *out);

private:
    static void compare_all(NodeDraws &draws, NeighborList list, int64_t count, int64_t *out);
    void hash_all(NodeDraws &draws, NeighborList list, int64_t count, int64_t *out);

    PooledArray<int64_t> taken_;  // an open-addressing set; empty slots hold -1
    int64_t capacity_ = 0;
};

}  // namespace gnnstore
