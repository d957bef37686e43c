// The index of the nodes that a cache holds: a bitmap with counts, since cached rows lie in the
// order of their nodes and a node's slot is the number of cached nodes before it. It takes
// 1.5 bits a node of the graph and a fetch of 12 bytes, where a table of slots takes 32 bits
// and a hash table 128 bits a cached node.
#pragma once

#include <cstdint>

namespace gnnstore {

// Fills bits [ceil(num_nodes / 64)] and ranks [the same] from strictly ascending nodes.
void index_nodes(const int64_t *nodes, int64_t num_cached, int64_t num_nodes, uint64_t *bits,
                 int32_t *ranks);

// slots[k]: the slot of ids[k], or -1. Ids are below 64 * num_words, which is checked.
template <class Id>
void find_slots(const uint64_t *bits, const int32_t *ranks, int64_t num_words, const Id *ids,
                int64_t num_ids, int32_t *slots);

// counts[ids[k]] += 1, up to the largest number that it can hold.
template <class Id, class Count>
void count_ids(const Id *ids, int64_t num_ids, Count *counts, int64_t num_counts);

}  // namespace gnnstore
