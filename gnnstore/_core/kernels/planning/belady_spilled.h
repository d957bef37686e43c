// Plans of traces that lie in a file, made and kept in files: the same plans as plan_belady's, in
// memory that goes with slots and with the largest batch, and in so much for next uses as is given.
#pragma once

#include <cstdint>

#include "kernels/files/spill_file.h"

namespace gnnstore {

// The ids of batch i are offsets[i + 1] - offsets[i] values from byte begins[i] of the file on.
struct SpilledTrace {
    const SpillFile &file;
    const int64_t *begins;   // [num_batches] in bytes
    const uint32_t *crcs;    // [num_batches] SpillFile::checksum
    const int64_t *offsets;  // [num_batches + 1]
    int64_t num_batches;
    int64_t num_nodes;  // ids are below
};

// Where a plan is put. slots: int32 of each access, one batch behind the other. changes: of each
// batch, the positions of the rows that enter and then their slots, int32; batch i's begin at
// byte 8 * change_offsets[i].
struct SpilledPlan {
    SpillFile &slots, &changes;     // empty ones
    int64_t *misses;                // [num_batches]
    uint32_t *slot_crcs;            // [num_batches]
    int64_t *change_offsets;        // [num_batches + 1]
    uint32_t *change_crcs;          // [num_batches]
};

// As plan_belady, with ids of type Id in the file. Looks for next uses in table_bytes of memory:
// for all accesses where they fit, else by a table of 4 bytes a node, in as many rounds as it
// takes. Batches of more than 30,000 rows are shared out among up to num_threads threads. If
// writing or reading fails, the cache counts as empty, or is what it was.
template <class Id>
void plan_belady_spilled(const SpilledTrace &trace, int64_t num_slots, int64_t *nodes,
                         int32_t *frequencies, int64_t table_bytes, int num_threads,
                         const SpilledPlan &plan);

}  // namespace gnnstore
