// The stages in which a batch is sampled, apart from where in-neighbours come from: memory
// (sampling.cpp) or a disk (sampling_staged.cpp).
//
// A batch makes some 10^5 random reads; done one after the other, each would wait for memory
// for 100 ns. So a hop runs in stages over its whole frontier, each a loop simple enough to
// prefetch what it will need some iterations later:
//
//   read_lists      indptr of the frontier: where each in-neighbour list starts and ends
//   choose          positions in these lists (Philox; no memory but its own output)
//   (the caller)    indices at the positions
//   relabel         neighbours to local ids, new ones assigned on insertion
//
// On an R-MAT graph of 2^24 nodes and 2.5 * 10^8 edges in memory they take 6, 25, 35 and 31 %
// of the time. Running them in turns on small chunks, so that the draws of one chunk would
// hide the reads of another, was slower by a tenth.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <limits>
#include <stdexcept>
#include <string>
#include <utility>

#include "kernels/base/relabel.h"
#include "kernels/sampling/sampling.h"

namespace gnnstore {

// How many iterations ahead each loop prefetches. Halves and doubles of these numbers
// differ by less than the noise.
inline constexpr int64_t lists_distance = 16;
inline constexpr int64_t neighbors_distance = 48;
inline constexpr int64_t relabel_distance = 24;

// Throws std::invalid_argument for options that make no sense together, or with the graph.
void check_sampling(const ColumnStarts &columns, const SamplingOptions &options,
                    int64_t largest_local_id);

// Whether the small table of local ids will do.
inline bool fits_compact_table(const ColumnStarts &columns, const SamplingOptions &options) {
    return !options.disjoint &&
           std::max(columns.num_nodes, columns.num_src_nodes) <= CompactTable::max_nodes;
}

template <class Index, class Local, class Table>
class BatchSampler {
public:
    BatchSampler(const ColumnStarts &columns, const SamplingOptions &options)
        : columns_(columns), options_(options), excludes_(!options.excluded.empty()) {}

    void add_seeds(const int64_t *seeds, int64_t num_seeds) {
        check_num_nodes(num_seeds);
        reserve_nodes(num_seeds);
        Local *n_id = n_id_.data();
        for (int64_t i = 0; i < num_seeds; ++i) {
            const int64_t seed = seeds[i];
            if (seed < 0 || seed >= columns_.num_nodes)
                throw std::out_of_range("seed " + std::to_string(seed) + " at position " +
                                        std::to_string(i) + " is outside [0, " +
                                        std::to_string(columns_.num_nodes) + ")");
            n_id[i] = static_cast<Local>(seed);
            if (options_.disjoint) tree_[i] = i;
            // A repeated seed keeps its place; the table knows the first.
            table_.find_or_insert(key_of(i), static_cast<uint32_t>(i));
        }
        num_nodes_ = num_seeds;
        batch_.num_sampled_nodes.push_back(num_seeds);
    }

    bool has_hop() const { return hop_ < options_.fanouts.size(); }

    // Draws the next hop, which expands the nodes that the one before found first, and
    // returns how many edges it has. Next: relabel.
    int64_t draw() {
        const int64_t fanout = options_.fanouts[hop_];
        frontier_ = num_nodes_ - batch_.num_sampled_nodes.back();
        frontier_end_ = num_nodes_;
        const int64_t hop_edges = read_lists(fanout);
        check_num_nodes(max_found(hop_edges));
        move_edges(num_edges_ + hop_edges);
        choose(static_cast<uint32_t>(hop_), fanout);
        return hop_edges;
    }

    // Where in indices the sources of the hop's edges stand.
    const int64_t *positions() const { return edge_pos_.data() + num_edges_; }

    // Calls use(node, a node some iterations ahead, list, number of edges) for the nodes of the
    // frontier, in order.
    template <class Use>
    void for_each_list(const Use &use) const {
        const int64_t fanout = options_.fanouts[hop_];
        for (int64_t i = frontier_; i < frontier_end_; ++i) {
            const Local ahead = n_id_[std::min(i + lists_distance, frontier_end_ - 1)];
            const NeighborList list = lists_[i - frontier_];
            use(int64_t{n_id_[i]}, int64_t{ahead}, list,
                num_chosen(list.num_eligible(), fanout, options_.replace));
        }
    }

    // Takes the sources of the hop's edges, which must have been checked: writes their local
    // ids, and the nodes that are new.
    void relabel(const Index *neighbors, int64_t hop_edges) {
        const int64_t num_nodes_before = num_nodes_;
        reserve_nodes(max_found(hop_edges));
        assign_local_ids(neighbors, hop_edges);
        num_edges_ += hop_edges;
        batch_.num_sampled_nodes.push_back(num_nodes_ - num_nodes_before);
        batch_.num_sampled_edges.push_back(hop_edges);
        ++hop_;
    }

    // All edges between the sampled nodes replace the sampled ones: for each node, in order
    // of local ids, its in-neighbour list without the nodes that are not in the batch.
    void drop_edges(int64_t capacity) {
        num_edges_ = 0;
        edge_capacity_ = capacity;
        edge_index_ = PooledArray<Local>(2 * capacity);
        edge_pos_ = PooledArray<int64_t>(capacity);
    }
    int64_t count_inner_edges(NeighborList list, const Index *neighbors) const {
        int64_t count = 0;
        for_each_inner_edge(list, neighbors, [&](int64_t, uint32_t) { ++count; });
        return count;
    }
    // Needs room for them. Part of a list is a list too.
    void append_inner_edges(int64_t i, NeighborList list, const Index *neighbors) {
        Local *source = edge_index_.data() + num_edges_, *target = targets() + num_edges_;
        int64_t *edge_pos = edge_pos_.data() + num_edges_;
        for_each_inner_edge(list, neighbors, [&](int64_t position, uint32_t local_id) {
            *source++ = static_cast<Local>(local_id);
            *target++ = static_cast<Local>(i);
            *edge_pos++ = position;
        });
        num_edges_ = edge_pos - edge_pos_.data();
    }
    void reserve_edges(int64_t more_edges) {
        if (num_edges_ + more_edges > edge_capacity_)
            move_edges(std::max(num_edges_ + more_edges, 2 * edge_capacity_));
    }

    int64_t num_nodes() const { return num_nodes_; }
    int64_t node(int64_t local_id) const { return n_id_[local_id]; }
    NeighborList list_of(int64_t local_id) const { return list_of_node(n_id_[local_id]); }

    bool outside(Index neighbor) const {
        return node_id(neighbor) >= static_cast<uint64_t>(columns_.num_src_nodes);
    }
    // Throws if one of the neighbours that were read is no node.
    void check_neighbors(const Index *neighbors, const int64_t *positions, int64_t count) const {
        bool is_outside = false;
        for (int64_t i = 0; i < count; ++i) is_outside |= outside(neighbors[i]);
        if (!is_outside) return;
        for (int64_t i = 0; i < count; ++i) check_neighbor(neighbors[i], positions[i]);
    }
    void check_neighbor(Index neighbor, int64_t position) const {
        if (outside(neighbor))
            throw std::invalid_argument("indices: the node id " + std::to_string(neighbor) +
                                        " at position " + std::to_string(position) +
                                        " is outside [0, " +
                                        std::to_string(columns_.num_src_nodes) + ")");
    }

    // Gives the table's memory back; nothing can be relabelled any more.
    void drop_table() { slots_ = {}; }

    SampledBatch release() {
        if (edge_capacity_ != num_edges_) move_edges(num_edges_);
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

    // Far above what fits in memory, and far below what overflows in sums and products.
    static constexpr int64_t max_edges = int64_t{1} << 48;

    // Looks up the lists of the frontier and returns how many edges they give.
    int64_t read_lists(int64_t fanout) {
        const int64_t begin = frontier_, end = frontier_end_;
        lists_ = PooledArray<NeighborList>(end - begin);
        const Local *n_id = n_id_.data();
        int64_t hop_edges = 0;
        for (int64_t i = begin; i < end; ++i) {
            const int64_t ahead = n_id[std::min(i + lists_distance, end - 1)];
            __builtin_prefetch(&columns_.indptr[std::min(ahead, columns_.num_nodes)]);
            NeighborList list = list_of_node(n_id[i]);
            if (excludes_) list.num_excluded = options_.excluded.count_in(n_id[i], list);
            lists_[i - begin] = list;
            hop_edges += num_chosen(list.num_eligible(), fanout, options_.replace);
            if (hop_edges > max_edges)
                throw std::overflow_error("a hop of more than 2^48 edges cannot be sampled");
        }
        return hop_edges;
    }

    // Writes edge_pos and the targets of the hop's edges.
    void choose(uint32_t hop, int64_t fanout) {
        int64_t *position = edge_pos_.data() + num_edges_;
        Local *target = targets() + num_edges_;
        for (int64_t i = frontier_; i < frontier_end_; ++i) {
            const NeighborList list = lists_[i - frontier_];
            const int64_t count = num_chosen(list.num_eligible(), fanout, options_.replace);
            chooser_.choose(options_.key, static_cast<uint64_t>(n_id_[i]), hop, tree_of(i),
                            {list.start, list.num_eligible()}, fanout, options_.replace, position);
            if (list.num_excluded != 0) options_.excluded.skip(n_id_[i], position, count);
            std::fill_n(target, count, static_cast<Local>(i));
            position += count;
            target += count;
        }
    }

    void assign_local_ids(const Index *neighbors, int64_t hop_edges) {
        Table table = table_;
        Local *source = edge_index_.data() + num_edges_;
        const Local *target = targets() + num_edges_;
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

    // Calls use(position, local id of the source) for the edges from sampled nodes that
    // stand in a list; its neighbours are checked.
    template <class Use>
    void for_each_inner_edge(NeighborList list, const Index *neighbors, const Use &use) const {
        const Table table = table_;
        for (int64_t k = 0; k < list.degree; ++k) {
            const Index ahead = neighbors[std::min(k + relabel_distance, list.degree - 1)];
            table.prefetch(Table::key(node_id(ahead), 0));
            check_neighbor(neighbors[k], list.start + k);
            const uint32_t local_id = table.find(Table::key(node_id(neighbors[k]), 0));
            if (local_id == no_local_id) continue;
            if (excludes_ && options_.excluded.has(list.start + k)) continue;
            use(list.start + k, local_id);
        }
    }

    // Without trees a node is found once at most.
    int64_t max_found(int64_t hop_edges) const {
        return options_.disjoint ? hop_edges : std::min(hop_edges, columns_.num_src_nodes);
    }

    void check_num_nodes(int64_t more_nodes) const {
        const int64_t max_nodes = num_nodes_ + more_nodes;
        const int64_t limit = std::min<int64_t>(no_local_id, std::numeric_limits<Local>::max());
        if (max_nodes >= limit)
            throw std::overflow_error("a batch of up to " + std::to_string(max_nodes) +
                                      " nodes cannot be sampled; the limit is " +
                                      std::to_string(limit));
    }

    // Makes room for more nodes. The table is filled anew when it grows, and it grows at each
    // hop: starting small keeps the early hops in the first cache levels. It grows when it is
    // needed and not when the hop is drawn, since batches may wait in between.
    void reserve_nodes(int64_t more_nodes) {
        const int64_t max_nodes = num_nodes_ + more_nodes;
        n_id_.grow(max_nodes + 1, num_nodes_);  // relabelling writes one element too many
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
    }

    void move_edges(int64_t capacity) {
        edge_pos_.grow(capacity, num_edges_);
        PooledArray<Local> edge_index(2 * capacity);
        std::copy_n(edge_index_.data(), num_edges_, edge_index.data());
        std::copy_n(targets(), num_edges_, edge_index.data() + capacity);
        edge_index_ = std::move(edge_index);
        edge_capacity_ = capacity;
    }

    NeighborList list_of_node(Local node) const {
        // Neighbours are known to lie below num_src_nodes, which may be more than num_nodes.
        if (node >= columns_.num_nodes)
            throw std::invalid_argument("indptr: node " + std::to_string(node) +
                                        " is to be expanded, but only nodes in [0, " +
                                        std::to_string(columns_.num_nodes) +
                                        ") have in-neighbour lists");
        const int64_t start = columns_.indptr[node], stop = columns_.indptr[node + 1];
        if (start < 0 || start > stop || stop > columns_.num_edges)
            throw std::invalid_argument("indptr: the in-neighbours of node " +
                                        std::to_string(node) + " stand at [" +
                                        std::to_string(start) + ", " + std::to_string(stop) +
                                        "), which is not a range within [0, " +
                                        std::to_string(columns_.num_edges) + ")");
        return {start, stop - start};
    }

    static uint64_t node_id(Index neighbor) { return static_cast<uint64_t>(int64_t{neighbor}); }

    Local *targets() const { return edge_index_.data() + edge_capacity_; }
    uint32_t tree_of(int64_t local_id) const {
        return options_.disjoint ? static_cast<uint32_t>(tree_[local_id]) : 0;
    }
    Key key_of(int64_t local_id) const {
        return Table::key(static_cast<uint64_t>(n_id_[local_id]), tree_of(local_id));
    }

    const ColumnStarts columns_;
    const SamplingOptions &options_;
    const bool excludes_;
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

    size_t hop_ = 0;                            // the one that is drawn next, or being drawn
    int64_t frontier_ = 0, frontier_end_ = 0;   // local ids of the nodes that it expands
    PooledArray<NeighborList> lists_;           // of the frontier
    PositionChooser chooser_;
};

}  // namespace gnnstore
