// The trace of a superbatch: which rows each of its batches needs, one batch behind the other.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "kernels/base/errors.h"

namespace gnnstore {

// ids[offsets[i]] to ids[offsets[i + 1] - 1] are the rows of batch i, in any order, repeated or
// not. Positions in a trace are kept in 32 bits throughout.
template <class Id>
struct Trace {
    const Id *ids;
    int64_t num_ids;
    const int64_t *offsets;  // [num_batches + 1]
    int64_t num_batches;
};

// The rows that enter a cache after each batch, and the slots that they go to.
struct CacheChanges {
    std::vector<int64_t> offsets;    // [num_batches + 1]
    std::vector<int32_t> positions;  // of the rows that enter after batch i, within that batch
    std::vector<int32_t> slots;      // that they are written to
};

inline constexpr int64_t max_trace_ids = std::numeric_limits<int32_t>::max() - 2;
// The highest count of batches that need a row; higher ones count as this one.
inline constexpr int32_t max_frequency = 65535;

inline void check_num_slots(int64_t num_slots) {
    if (num_slots > max_trace_ids)
        throw invalid("a cache holds at most ", max_trace_ids, " rows, got ", num_slots);
}

template <class Id>
void check_offsets(const Trace<Id> &trace) {
    using std::to_string;
    if (trace.num_batches < 0) throw invalid("offsets must not be empty");
    require(trace.num_batches <= std::numeric_limits<int32_t>::max(), "a superbatch has at most "
            "2^31 - 1 batches, got ", trace.num_batches);
    require(trace.num_ids <= max_trace_ids, "a trace has at most ", max_trace_ids, " ids, got ",
            trace.num_ids, "; plan fewer batches at a time");
    const int64_t *offsets = trace.offsets;
    require(offsets[0] == 0 && offsets[trace.num_batches] == trace.num_ids, "offsets must go from "
            "0 to the ", trace.num_ids, " ids, but go from ", offsets[0], " to ",
            offsets[trace.num_batches]);
    for (int64_t i = 0; i < trace.num_batches; ++i)
        require(offsets[i] <= offsets[i + 1], "offsets must not descend, but ", offsets[i + 1], " "
                "at position ", i + 1, " follows ", offsets[i]);
}

template <class Id>
int64_t longest_batch(const Trace<Id> &trace) {
    int64_t longest = 0;
    for (int64_t i = 0; i < trace.num_batches; ++i)
        longest = std::max(longest, trace.offsets[i + 1] - trace.offsets[i]);
    return longest;
}

}  // namespace gnnstore
