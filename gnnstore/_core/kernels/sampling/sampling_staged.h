// Sampling when in-neighbours do not lie in memory: a batch asks for positions of arrays that it
// needs next, its caller fetches them, and it goes on. The result is sample_neighbors', bit for
// bit.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/base/pooled_array.h"
#include "kernels/sampling/sampling.h"

namespace gnnstore {

// In-neighbour lists of some nodes, in memory: one behind the other, in the order of the
// nodes. A list is found by counting: starts has the first one's place for each 64 nodes, and
// the lengths of those between are in indptr. That takes 2 bits a node of the graph; a place
// for each list would take as much memory as the lists of two in-neighbours themselves.
struct CachedLists {
    const uint64_t *bits = nullptr;   // ceil(num_nodes / 64); null: there is no cache
    const int64_t *starts = nullptr;  // as many
    const void *neighbors = nullptr;  // as wide as the edge type's
    int64_t num_neighbors = 0;
};

// An array of an edge type, and the positions of its elements that a batch needs.
enum class Column { indices, order, times, sums };
struct ReadRequest {
    int64_t edge_type = 0;
    Column column = Column::indices;
    PooledArray<int64_t> positions;
    int64_t count = 0;
};

// One batch. For one thread at a time. Calls out of order throw std::logic_error, and so do
// calls after one that threw.
class StagedBatch {
public:
    virtual ~StagedBatch() = default;

    // Whether something is left to fetch or to compute.
    virtual bool is_done() const = 0;
    // Goes on to what is needed next; may be nothing at all.
    virtual std::vector<ReadRequest> draw() = 0;
    // Takes the elements for each request, and checks them.
    virtual void take(const std::vector<const void *> &fetched) = 0;
    // In the end: the batch.
    virtual SampledBatch release() = 0;

    // In-neighbours that caches have served so far.
    int64_t num_cached() const { return num_cached_; }

protected:
    int64_t num_cached_ = 0;
};

// Local is int32_t or int64_t; exceptions are sample_neighbors'. There is a cache for each
// edge type. What lies along whole in-neighbour lists is asked for in pieces of
// max_column_positions: induced subgraphs need it, which take parts of lists too, and choices by time
// or weight, whose pieces have one list at least. The arrays that the graph and the caches point to
// must outlive the batch.
template <class Local>
std::unique_ptr<StagedBatch> make_staged_batch(TypedGraph graph, std::vector<CachedLists> caches,
                                               const std::vector<Seeds> &seeds,
                                               const SamplingOptions &options,
                                               int64_t max_column_positions);

}  // namespace gnnstore
