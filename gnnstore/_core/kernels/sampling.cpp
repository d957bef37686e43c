// The staged loop. A batch makes some 10^5 random reads; done one after the other, each
// would wait for memory for 100 ns. So a hop runs in stages over its whole frontier, each
// a loop simple enough to prefetch what it will need some iterations later:
//
//   read_lists      indptr of the frontier: where each in-neighbour list starts and ends
//   choose          positions in these lists (Philox; no memory but its own output)
//   read_neighbors  indices at the positions
//   relabel         neighbours to local ids, new ones assigned on insertion
//
// On an R-MAT graph of 2^24 nodes and 2.5 * 10^8 edges they take 6, 25, 35 and 31 % of the
// time. Running them in turns on small chunks, so that the draws of one chunk would hide the
// reads of another, was slower by a tenth.
#include "kernels/sampling.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <stdexcept>
#include <string>
#include <utility>

#include "kernels/relabel.h"

namespace gnnstore {
namespace {

// How many iterations ahead each loop prefetches. Halves and doubles of these numbers
// differ by less than the noise.
constexpr int64_t lists_distance = 16;
constexpr int64_t neighbors_distance = 48;
constexpr int64_t relabel_distance = 24;

// Far above what fits in memory, and far below what overflows in sums and products.
constexpr int64_t max_edges = int64_t{1} << 48;

using std::to_string;

[[noreturn]] void throw_bad_list(int64_t node, int64_t start, int64_t stop, int64_t num_edges) {
    throw std::invalid_argument("indptr: the in-neighbours of node " + to_string(node) +
                                " stand at [" + to_string(start) + ", " + to_string(stop) +
                                "), which is not a range within [0, " + to_string(num_edges) + ")");
}

[[noreturn]] void throw_no_list(int64_t node, int64_t num_nodes) {
    throw std::invalid_argument("indptr: node " + to_string(node) +
                                " is to be expanded, but only nodes in [0, " +
                                to_string(num_nodes) + ") have in-neighbour lists");
}

[[noreturn]] void throw_bad_neighbor(int64_t position, int64_t neighbor, int64_t num_nodes) {
    throw std::invalid_argument("indices: the node id " + to_string(neighbor) + " at position " +
                                to_string(position) + " is outside [0, " + to_string(num_nodes) +
                                ")");
}

template <class Index, class Local, class Table>
class BatchSampler {
public:
    BatchSampler(const CscView<Index> &graph, const SamplingOptions &options)
        : graph_(graph), options_(options) {}

    SampledBatch run(const int64_t *seeds, int64_t num_seeds) {
        add_seeds(seeds, num_seeds);
        int64_t begin = 0;
        for (size_t hop = 0; hop < options_.fanouts.size(); ++hop) {
            const int64_t end = num_nodes_;
            expand(begin, end, static_cast<uint32_t>(hop), options_.fanouts[hop]);
            begin = end;
        }
        if (options_.induced) connect_all();

        batch_.num_nodes = num_nodes_;
        batch_.num_edges = num_edges_;
        batch_.n_id = std::move(n_id_);
        batch_.edge_index = std::move(edge_index_);
        batch_.edge_pos = std::move(edge_pos_);
        batch_.tree = std::move(tree_);
        return std::move(batch_);
    }

private:
    using Key = typename Table::Key;

    void add_seeds(const int64_t *seeds, int64_t num_seeds) {
        reserve(num_seeds, 0);
        Local *n_id = n_id_.data();
        for (int64_t i = 0; i < num_seeds; ++i) {
            const int64_t seed = seeds[i];
            if (seed < 0 || seed >= graph_.num_nodes)
                throw std::out_of_range("seed " + to_string(seed) + " at position " + to_string(i) +
                                        " is outside [0, " + to_string(graph_.num_nodes) + ")");
            n_id[i] = static_cast<Local>(seed);
            if (options_.disjoint) tree_[i] = i;
            // A repeated seed keeps its place; the table knows the first.
            table_.find_or_insert(key_of(i), static_cast<uint32_t>(i));
        }
        num_nodes_ = num_seeds;
        batch_.num_sampled_nodes.push_back(num_seeds);
    }

    void expand(int64_t begin, int64_t end, uint32_t hop, int64_t fanout) {
        const int64_t num_nodes_before = num_nodes_;
        const int64_t hop_edges = read_lists(begin, end, fanout);
        // Without trees a node is found once at most.
        const int64_t max_found =
            options_.disjoint ? hop_edges : std::min(hop_edges, graph_.num_src_nodes);
        reserve(max_found, hop_edges);
        choose(begin, end, hop, fanout);
        read_neighbors(hop_edges);
        relabel(hop_edges);
        num_edges_ += hop_edges;
        batch_.num_sampled_nodes.push_back(num_nodes_ - num_nodes_before);
        batch_.num_sampled_edges.push_back(hop_edges);
    }

    // Looks up the lists of nodes begin ... end - 1 and returns how many edges they give.
    int64_t read_lists(int64_t begin, int64_t end, int64_t fanout) {
        lists_ = PooledArray<NeighborList>(end - begin);
        const Local *n_id = n_id_.data();
        int64_t hop_edges = 0;
        for (int64_t i = begin; i < end; ++i) {
            const int64_t ahead = n_id[std::min(i + lists_distance, end - 1)];
            __builtin_prefetch(&graph_.indptr[std::min(ahead, graph_.num_nodes)]);
            const NeighborList list = list_of(n_id[i]);
            lists_[i - begin] = list;
            hop_edges += num_chosen(list.degree, fanout, options_.replace);
            if (hop_edges > max_edges)
                throw std::overflow_error("a hop of more than 2^48 edges cannot be sampled");
        }
        return hop_edges;
    }

    // Writes edge_pos and the targets of the hop's edges.
    void choose(int64_t begin, int64_t end, uint32_t hop, int64_t fanout) {
        int64_t *position = edge_pos_.data() + num_edges_;
        Local *target = targets() + num_edges_;
        for (int64_t i = begin; i < end; ++i) {
            const NeighborList list = lists_[i - begin];
            const int64_t count = num_chosen(list.degree, fanout, options_.replace);
            chooser_.choose(options_.key, static_cast<uint64_t>(n_id_[i]), hop, tree_of(i), list,
                            fanout, options_.replace, position);
            std::fill_n(target, count, static_cast<Local>(i));
            position += count;
            target += count;
        }
    }

    void read_neighbors(int64_t hop_edges) {
        neighbors_ = PooledArray<Index>(hop_edges);
        const int64_t *position = edge_pos_.data() + num_edges_;
        const Index *indices = graph_.indices;
        Index *neighbors = neighbors_.data();
        bool is_outside = false;
        for (int64_t i = 0; i < hop_edges; ++i) {
            __builtin_prefetch(&indices[position[std::min(i + neighbors_distance, hop_edges - 1)]]);
            neighbors[i] = indices[position[i]];
            is_outside |= outside(neighbors[i]);
        }
        if (!is_outside) return;
        for (int64_t i = 0; i < hop_edges; ++i) check_neighbor(neighbors[i], position[i]);
    }

    // Writes the sources of the hop's edges, and the nodes that are new.
    void relabel(int64_t hop_edges) {
        Table table = table_;
        Local *source = edge_index_.data() + num_edges_;
        const Local *target = targets() + num_edges_;
        const Index *neighbors = neighbors_.data();
        Local *n_id = n_id_.data();
        int64_t num_nodes = num_nodes_;
        for (int64_t i = 0; i < hop_edges; ++i) {
            const int64_t ahead = std::min(i + relabel_distance, hop_edges - 1);
            table.prefetch(Table::key(node_id(neighbors[ahead]), tree_of(target[ahead])));
            const uint32_t tree = tree_of(target[i]);
            const uint32_t local_id = table.find_or_insert(
                Table::key(node_id(neighbors[i]), tree), static_cast<uint32_t>(num_nodes));
            source[i] = static_cast<Local>(local_id);
            // Written for every edge, kept if the node is new: cheaper than a branch.
            n_id[num_nodes] = static_cast<Local>(neighbors[i]);
            if (options_.disjoint) tree_[num_nodes] = tree;
            num_nodes += local_id == num_nodes;
        }
        num_nodes_ = num_nodes;
    }

    // Replaces the sampled edges by all edges between the sampled nodes: for each node, in
    // order of local ids, its in-neighbour list without the nodes that are not in the batch.
    // Hubs make these many times the sampled edges, so they are counted before they are
    // written: the second look-up costs less than memory that grows.
    void connect_all() {
        num_edges_ = 0;
        for (int64_t i = 0; i < num_nodes_; ++i)
            for_each_inner_edge(i, [&](int64_t, uint32_t) { ++num_edges_; });
        edge_capacity_ = num_edges_;
        edge_index_ = PooledArray<Local>(2 * num_edges_);
        edge_pos_ = PooledArray<int64_t>(num_edges_);

        Local *source = edge_index_.data(), *target = targets();
        int64_t *edge_pos = edge_pos_.data();
        for (int64_t i = 0; i < num_nodes_; ++i)
            for_each_inner_edge(i, [&](int64_t position, uint32_t local_id) {
                *source++ = static_cast<Local>(local_id);
                *target++ = static_cast<Local>(i);
                *edge_pos++ = position;
            });
    }

    // Calls use(position, local id of the source) for the edges from sampled nodes to node i.
    template <class Use>
    void for_each_inner_edge(int64_t i, const Use &use) const {
        const Table table = table_;
        const Index *indices = graph_.indices;
        const auto [start, degree] = list_of(n_id_[i]);
        const int64_t stop = start + degree;
        for (int64_t position = start; position < stop; ++position) {
            const Index ahead = indices[std::min(position + relabel_distance, stop - 1)];
            table.prefetch(Table::key(node_id(ahead), 0));
            check_neighbor(indices[position], position);
            const uint32_t local_id = table.find(Table::key(node_id(indices[position]), 0));
            if (local_id != no_local_id) use(position, local_id);
        }
    }

    // Makes room for more nodes and edges. The table is filled anew when it grows, and it
    // grows at each hop: starting small keeps the early hops in the first cache levels.
    void reserve(int64_t more_nodes, int64_t more_edges) {
        const int64_t max_nodes = num_nodes_ + more_nodes;
        const int64_t limit = std::min<int64_t>(no_local_id, std::numeric_limits<Local>::max());
        if (max_nodes >= limit)
            throw std::overflow_error("a batch of up to " + to_string(max_nodes) +
                                      " nodes cannot be sampled; the limit is " + to_string(limit));
        n_id_.grow(max_nodes + 1, num_nodes_);  // relabel writes one element too many
        if (options_.disjoint) tree_.grow(max_nodes + 1, num_nodes_);
        const auto num_slots =
            static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(2 * max_nodes + 2)));
        if (num_slots > num_slots_) {
            num_slots_ = num_slots;
            slots_ = PooledArray<typename Table::Slot>(num_slots);
            table_.reset(slots_.raw(), num_slots);
            for (int64_t i = 0; i < num_nodes_; ++i)
                table_.find_or_insert(key_of(i), static_cast<uint32_t>(i));
        }

        const int64_t total = num_edges_ + more_edges;
        edge_pos_.grow(total, num_edges_);
        PooledArray<Local> edge_index(2 * total);
        std::copy_n(edge_index_.data(), num_edges_, edge_index.data());
        std::copy_n(targets(), num_edges_, edge_index.data() + total);
        edge_index_ = std::move(edge_index);
        edge_capacity_ = total;
    }

    NeighborList list_of(Local node) const {
        // Neighbours are known to lie below num_src_nodes, which may be more than num_nodes.
        if (node >= graph_.num_nodes) throw_no_list(node, graph_.num_nodes);
        const int64_t start = graph_.indptr[node], stop = graph_.indptr[node + 1];
        if (start < 0 || start > stop || stop > graph_.num_edges)
            throw_bad_list(node, start, stop, graph_.num_edges);
        return {start, stop - start};
    }

    bool outside(Index neighbor) const {
        return node_id(neighbor) >= static_cast<uint64_t>(graph_.num_src_nodes);
    }
    void check_neighbor(Index neighbor, int64_t position) const {
        if (outside(neighbor)) throw_bad_neighbor(position, neighbor, graph_.num_src_nodes);
    }
    static uint64_t node_id(Index neighbor) { return static_cast<uint64_t>(int64_t{neighbor}); }

    Local *targets() const { return edge_index_.data() + edge_capacity_; }
    uint32_t tree_of(int64_t local_id) const {
        return options_.disjoint ? static_cast<uint32_t>(tree_[local_id]) : 0;
    }
    Key key_of(int64_t local_id) const {
        return Table::key(static_cast<uint64_t>(n_id_[local_id]), tree_of(local_id));
    }

    const CscView<Index> graph_;
    const SamplingOptions &options_;
    SampledBatch batch_;

    PooledArray<Local> n_id_;
    PooledArray<int64_t> tree_;
    int64_t num_nodes_ = 0;

    PooledArray<Local> edge_index_;  // [2, edge_capacity_]
    PooledArray<int64_t> edge_pos_;
    int64_t num_edges_ = 0;
    int64_t edge_capacity_ = 0;

    PooledArray<typename Table::Slot> slots_;
    Table table_;
    int64_t num_slots_ = 0;

    PooledArray<NeighborList> lists_;  // of the frontier
    PooledArray<Index> neighbors_;     // of the hop, before relabelling
    PositionChooser chooser_;
};

template <class Index, class Local>
void check_options(const CscView<Index> &graph, const SamplingOptions &options) {
    if (options.disjoint && options.induced)
        throw std::invalid_argument("disjoint and induced exclude each other");
    for (const int64_t fanout : options.fanouts) check_fanout(fanout);
    if (graph.num_src_nodes < 0)
        throw std::invalid_argument("num_src_nodes must not be negative, got " +
                                    to_string(graph.num_src_nodes));
    const int64_t num_ids = std::max(graph.num_nodes, graph.num_src_nodes);
    if (num_ids - 1 > std::numeric_limits<Local>::max())
        throw std::invalid_argument("the ids of " + to_string(num_ids) +
                                    " nodes do not fit in 32 bits; ask for int64");
}

}  // namespace

template <class Index, class Local>
SampledBatch sample_neighbors(const CscView<Index> &graph, const int64_t *seeds, int64_t num_seeds,
                              const SamplingOptions &options) {
    check_options<Index, Local>(graph, options);
    const bool is_compact =
        !options.disjoint &&
        std::max(graph.num_nodes, graph.num_src_nodes) <= CompactTable::max_nodes;
    if (is_compact)
        return BatchSampler<Index, Local, CompactTable>(graph, options).run(seeds, num_seeds);
    return BatchSampler<Index, Local, WideTable>(graph, options).run(seeds, num_seeds);
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
