// Sampling when in-neighbours do not lie in memory: a batch says which positions of indices it
// needs next, whoever drives it fetches them, and it goes on. The result is the one of
// sample_neighbors, bit for bit.
#pragma once

#include <cstdint>
#include <memory>

#include "kernels/base/pooled_array.h"
#include "kernels/sampling/sampling.h"

namespace gnnstore {

// In-neighbour lists of some nodes, in memory: one behind the other, in the order of the
// nodes. A list is found by counting: starts has the first one's place for each 64 nodes, and
// the lengths of those between are in indptr. That takes 2 bits a node of the graph; a place
// for each list would take as much memory as the lists of two in-neighbours themselves.
template <class Index>
struct CachedLists {
    const uint64_t *bits = nullptr;   // ceil(num_nodes / 64); null: there is no cache
    const int64_t *starts = nullptr;  // as many
    const Index *neighbors = nullptr;
    int64_t num_neighbors = 0;
};

// One batch. For one thread at a time. Calls out of order throw std::logic_error, and so do
// calls after one that threw.
class StagedBatch {
public:
    virtual ~StagedBatch() = default;

    // Whether something is left to fetch or to compute.
    virtual bool is_done() const = 0;
    // Goes on to the next positions, whose number is returned; may be none at all.
    virtual int64_t draw() = 0;
    // Hands the positions that draw has found out, once.
    virtual PooledArray<int64_t> take_positions() = 0;
    // Takes the ids at these positions, of the batch's Index type, and checks them.
    virtual void take(const void *neighbors) = 0;
    // In the end: the batch.
    virtual SampledBatch release() = 0;

    // In-neighbours that the cache has served so far.
    int64_t num_cached() const { return num_cached_; }

protected:
    int64_t num_cached_ = 0;
};

// Index, the type of the ids in indices, and Local are int32_t or int64_t; exceptions are
// those of sample_neighbors. Whole in-neighbour lists, which induced subgraphs need, are
// asked for in pieces of max_column_positions. The arrays that columns and cache point to must
// outlive the batch.
template <class Index, class Local>
std::unique_ptr<StagedBatch> make_staged_batch(const ColumnStarts &columns,
                                               const CachedLists<Index> &cache,
                                               const int64_t *seeds, int64_t num_seeds,
                                               SamplingOptions options,
                                               int64_t max_column_positions);

}  // namespace gnnstore
