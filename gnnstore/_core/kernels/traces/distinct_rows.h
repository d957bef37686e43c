// The rows that a cache holds, each named once: a row that left the cache and entered it again
// may still lie in its former slot too.
#pragma once

#include <cstdint>

namespace gnnstore {

// distinct [num_slots] becomes nodes [num_slots], but -1 for all slots of a row behind its first,
// and for negative ones. They may be the same array. Takes 5 to 10 bytes a slot.
void distinct_rows(const int64_t *nodes, int64_t num_slots, int64_t *distinct);

}  // namespace gnnstore
