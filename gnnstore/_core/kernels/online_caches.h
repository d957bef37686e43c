// Caches that do not know the future, run over a trace to compare with: LRU, and SIEVE (Zhang
// et al., NSDI '24), which GraphBolt uses. Both work batch by batch, as a plan does: the hits
// of a batch are the rows that were cached before it, and its rows enter after it.
#pragma once

#include <cstdint>

#include "kernels/superbatch.h"

namespace gnnstore {

// is_hit [num_ids] receives 1 for each access to a row that was cached before its batch, else
// 0; misses [num_batches] the distinct rows of each batch that were not. The cache is empty at
// the start. gnnstore.testing.caches defines the results.
template <class Id>
void run_lru(const Trace<Id> &trace, int64_t num_slots, uint8_t *is_hit, int64_t *misses);

template <class Id>
void run_sieve(const Trace<Id> &trace, int64_t num_slots, uint8_t *is_hit, int64_t *misses);

}  // namespace gnnstore
