// Plans of the rows that a cache holds while a superbatch, known in advance, is assembled: Belady's
// rule at the granularity of batches, with bypass (Ginex, section 3.3), in two passes.
#pragma once

#include <cstdint>

#include "kernels/traces/superbatch.h"

namespace gnnstore {

// Plans a cache of num_slots rows. nodes and frequencies [num_slots] are the cache before the
// superbatch, and become the cache after it; -1 and 0: an empty slot. If planning fails they stay
// what they are, or become empty if it fails late. slots [num_ids] receives
// the slot of each access that is a hit, else -1; misses [num_batches] the distinct rows of
// each batch that are not in the cache. tests.support.twins.caches.belady_plan defines the result.
// num_threads look for next uses; the plan does not depend on how many there are.
template <class Id>
CacheChanges plan_belady(const Trace<Id> &trace, int64_t num_slots, int64_t *nodes,
                         int32_t *frequencies, int32_t *slots, int64_t *misses, int num_threads);

}  // namespace gnnstore
