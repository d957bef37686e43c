// Sampling from a graph in memory, or mapped as if it were: the stages of batch_sampler.h, and
// between them random reads of indices.
#include "kernels/sampling/sampling.h"

#include <algorithm>
#include <limits>
#include <stdexcept>
#include <string>

#include "kernels/sampling/batch_sampler.h"

namespace gnnstore {
namespace {

template <class Index, class Local, class Table>
class MemorySampler {
public:
    MemorySampler(const CscView<Index> &graph, const SamplingOptions &options)
        : indices_(graph.indices), batch_(graph, options) {}

    SampledBatch run(const int64_t *seeds, int64_t num_seeds, bool induced) {
        batch_.add_seeds(seeds, num_seeds);
        while (batch_.has_hop()) {
            const int64_t hop_edges = batch_.draw();
            read_neighbors(hop_edges);
            batch_.relabel(neighbors_.data(), hop_edges);
        }
        if (induced) connect_all();
        return batch_.release();
    }

private:
    void read_neighbors(int64_t hop_edges) {
        neighbors_ = PooledArray<Index>(hop_edges);
        const int64_t *position = batch_.positions();
        const Index *indices = indices_;
        Index *neighbors = neighbors_.data();
        bool is_outside = false;
        for (int64_t i = 0; i < hop_edges; ++i) {
            __builtin_prefetch(&indices[position[std::min(i + neighbors_distance, hop_edges - 1)]]);
            neighbors[i] = indices[position[i]];
            is_outside |= batch_.outside(neighbors[i]);
        }
        if (is_outside) batch_.check_neighbors(neighbors, position, hop_edges);
    }

    // Hubs make these many times the sampled edges, so they are counted before they are
    // written: the second look-up costs less than memory that grows.
    void connect_all() {
        int64_t num_edges = 0;
        for (int64_t i = 0; i < batch_.num_nodes(); ++i) {
            const NeighborList list = batch_.list_of(i);
            num_edges += batch_.count_inner_edges(list, indices_ + list.start);
        }
        batch_.drop_edges(num_edges);
        for (int64_t i = 0; i < batch_.num_nodes(); ++i) {
            const NeighborList list = batch_.list_of(i);
            batch_.append_inner_edges(i, list, indices_ + list.start);
        }
    }

    const Index *indices_;
    BatchSampler<Index, Local, Table> batch_;
    PooledArray<Index> neighbors_;  // of the hop, before relabelling
};

}  // namespace

void check_sampling(const ColumnStarts &columns, const SamplingOptions &options,
                    int64_t largest_local_id) {
    if (options.disjoint && options.induced)
        throw std::invalid_argument("disjoint and induced exclude each other");
    for (const int64_t fanout : options.fanouts) check_fanout(fanout);
    if (columns.num_src_nodes < 0)
        throw std::invalid_argument("num_src_nodes must not be negative, got " +
                                    std::to_string(columns.num_src_nodes));
    const int64_t num_ids = std::max(columns.num_nodes, columns.num_src_nodes);
    if (num_ids - 1 > largest_local_id)
        throw std::invalid_argument("the ids of " + std::to_string(num_ids) +
                                    " nodes do not fit in 32 bits; ask for int64");
}

template <class Index, class Local>
SampledBatch sample_neighbors(const CscView<Index> &graph, const int64_t *seeds, int64_t num_seeds,
                              const SamplingOptions &options) {
    check_sampling(graph, options, std::numeric_limits<Local>::max());
    if (fits_compact_table(graph, options))
        return MemorySampler<Index, Local, CompactTable>(graph, options)
            .run(seeds, num_seeds, options.induced);
    return MemorySampler<Index, Local, WideTable>(graph, options)
        .run(seeds, num_seeds, options.induced);
}

template SampledBatch sample_neighbors<int32_t, int32_t>(const CscView<int32_t> &, const int64_t *,
                                                         int64_t, const SamplingOptions &);
template SampledBatch sample_neighbors<int32_t, int64_t>(const CscView<int32_t> &, const int64_t *,
                                                         int64_t, const SamplingOptions &);
template SampledBatch sample_neighbors<int64_t, int32_t>(const CscView<int64_t> &, const int64_t *,
                                                         int64_t, const SamplingOptions &);
template SampledBatch sample_neighbors<int64_t, int64_t>(const CscView<int64_t> &, const int64_t *,
                                                         int64_t, const SamplingOptions &);

}  // namespace gnnstore
