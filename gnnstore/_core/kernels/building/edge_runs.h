// Sorting edges that memory cannot hold: packed and sorted run by run, merged range by range.
//
// A run is an array of packed edges in the order of (target, source, position), as it lies on
// disk. Packed, because a run is written and read in one piece, and because sorting moves the
// whole edge.
#pragma once

#include <cstdint>
#include <vector>

namespace gnnstore {

// An edge of a graph whose ids fit in 32 bits. The position is that in the part of the input
// that the run covers, so it fits, too.
struct NarrowEdge {
    uint32_t target, source, position;
};
static_assert(sizeof(NarrowEdge) == 12);

// An edge of any graph: ids below 2^48.
struct WideEdge {
    uint64_t target, source, position;
};
static_assert(sizeof(WideEdge) == 24);

inline constexpr int64_t max_nodes = int64_t{1} << 48;

// Packs edges, the first at `first_position` of the run, behind each other. Returns how many
// there are: all, or all but self-loops. Throws std::out_of_range for an id that does not fit.
template <class Edge, class Id>
int64_t pack_edges(const Id *sources, const Id *targets, int64_t num_edges, int64_t first_position,
                   bool drop_self_loops, Edge *out);

// Sorts by (target, source, position). Positions must ascend on entry; `scratch` is as long
// as `edges`. The result does not depend on the number of threads.
template <class Edge>
void sort_edges(Edge *edges, Edge *scratch, int64_t num_edges, int num_threads);

// Keeps the first of sorted edges with equal ends; returns how many are left.
template <class Edge>
int64_t drop_repeated_edges(Edge *edges, int64_t num_edges);

// A piece of a run, in memory; need not be aligned.
struct RunSlice {
    const uint8_t *records;
    int64_t num_records;
    bool is_wide;
    int64_t first_id;  // id of the edge at position 0 of the run
};

// Which part of the adjacency the slices make up, and by which rules.
struct MergeRange {
    int64_t first_column;  // targets are in [first_column, first_column + num_columns)
    int64_t num_columns;
    int64_t num_nodes;     // sources are below
    bool unique;           // keep the first of edges with equal ends
    bool skip_first;       // edges with the ends of the first one are repeats of an earlier one
    int64_t first_loop;    // nodes in [first_loop, end_loop) without a self-loop get one
    int64_t end_loop;
    int64_t present_loop;  // but for this node, whose self-loop lies in another range; or -1
    int64_t first_loop_id;
};

// Where edges go; what is null is not wanted.
template <class Id, class EdgeId>
struct MergeOutput {
    Id *sources;
    EdgeId *edge_ids;
    int32_t *origins;  // place among the records of all slices; -1: a self-loop that was added
    int64_t *column_counts;  // [num_columns], zeros on entry
};

struct MergeCounts {
    int64_t num_edges;  // with those that were added
    int64_t num_added;
};

// How many edges a range can have at most.
int64_t merge_capacity(const std::vector<RunSlice> &slices, const MergeRange &range);

// Merges slices, of which earlier ones win among equal edges. Throws std::invalid_argument if
// one is not sorted, or an edge is outside of the range: the run is damaged.
template <class Id, class EdgeId>
MergeCounts merge_runs(const std::vector<RunSlice> &slices, const MergeRange &range,
                       const MergeOutput<Id, EdgeId> &out);

}  // namespace gnnstore
