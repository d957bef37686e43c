// Where the ids of a batch lie among other ids, such as the batch before.
// `tests.support.twins.caches` defines the result.
#pragma once

#include <cstdint>

namespace gnnstore {

// places[k] becomes the first position of ids[k] in known, or -1 if it is not there. Needs fewer than
// 2^31 known ids. Takes a table of up to 64 bytes for each of these.
template <class Id, class Known>
void places_of(const Id *ids, int64_t num_ids, const Known *known, int64_t num_known,
               int32_t *places);

}  // namespace gnnstore
