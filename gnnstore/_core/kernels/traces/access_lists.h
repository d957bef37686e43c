// Lists of the accesses of a batch by what becomes of them. Which it is cannot be predicted, so
// they are listed without branches; with AVX-512 sixteen at a time, which takes 0.6 ns an access
// and lets the forward pass of a plan take two thirds of the time.
#pragma once

#include <cstdint>

namespace gnnstore {

// Accesses at a time, whose lists stay in a core's first cache.
inline constexpr int32_t list_block = 512;
// Elements that may be written behind the end of a list; they are not part of it.
inline constexpr int32_t list_slack = 16;

// Lists the i of those values [size] that are at least `low` and at most `high`, in their order;
// returns how many. found [size + list_slack].
int32_t list_between(const int32_t *values, int32_t size, int32_t low, int32_t high,
                     int32_t *found);

// The accesses of a batch whose rows are kept: rows next used before a position, and, where the
// next use is unknown, rows of high enough frequency. See Planner.
struct KeptUses {
    int32_t here, later;  // the first positions of the batch and of what is behind it
    int32_t kept_end;     // next uses before it are kept
    int32_t stay_end;     // negative frequencies below it stay
};

struct AccessLists {
    int32_t num_handed_on, num_others;
    // Accesses whose slot goes to their next use: this, and the slot.
    int32_t uses[list_block + list_slack], slots[list_block + list_slack];
    // Other accesses that have a slot or are kept: their places in the batch.
    int32_t others[list_block + list_slack];
};

// Lists the accesses of a batch from `begin` to `end`, at most list_block: next and slots are those
// of the whole batch. An access that is repeated in the batch gives its slot to the one behind it.
void list_accesses(const int32_t *next, int32_t *slots, int32_t begin, int32_t end,
                   const KeptUses &kept, AccessLists &lists);

// The same without AVX-512.
int32_t list_between_portable(const int32_t *values, int32_t size, int32_t low, int32_t high,
                              int32_t *found);
void list_accesses_portable(const int32_t *next, int32_t *slots, int32_t begin, int32_t end,
                            const KeptUses &kept, AccessLists &lists);

}  // namespace gnnstore
