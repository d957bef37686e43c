// Caches that do not know the future, planned to compare with: LRU, and SIEVE (Zhang et al.,
// NSDI '24), which GraphBolt uses. Both work batch by batch, as Belady's plan does: the hits of
// a batch are the rows that were cached before it, and its rows enter after it.
#pragma once

#include <cstdint>

#include "kernels/traces/superbatch.h"

namespace gnnstore {

enum class OnlinePolicy { lru, sieve };

// A cache between two superbatches.
struct OnlineState {
    int64_t *nodes;    // [num_slots] the row in each slot; -1: none
    int32_t *order;    // [num_slots] the slots that hold one, oldest first; -1 behind them
    uint8_t *visited;  // [num_slots] 1: SIEVE's hand spares the row once
    int32_t hand;      // the slot that the hand points to; -1: the oldest
};

// Plans a cache of num_slots rows, and leaves it as it is after the superbatch. slots [num_ids]
// receives the slot of each access that is a hit, else -1; misses [num_batches] the distinct rows
// of each batch that are not in the cache. gnnstore.testing.twins.caches.online_plan defines the result.
template <class Id>
CacheChanges plan_online(OnlinePolicy policy, const Trace<Id> &trace, int64_t num_slots,
                         OnlineState &state, int32_t *slots, int64_t *misses);

}  // namespace gnnstore
