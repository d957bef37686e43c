// The nodes of one type in a batch: their ids, trees and local ids.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "kernels/base/errors.h"
#include "kernels/base/relabel.h"
#include "kernels/sampling/sampling.h"

namespace gnnstore {

// How many iterations ahead each loop prefetches. Halves and doubles of these numbers
// differ by less than the noise.
inline constexpr int64_t lists_distance = 16;
inline constexpr int64_t neighbors_distance = 48;
inline constexpr int64_t relabel_distance = 24;

inline uint64_t node_id(int64_t neighbor) { return static_cast<uint64_t>(neighbor); }

template <class Local, class Table>
class NodeTable {
public:
    NodeTable(const NodeType &type, bool disjoint) : type_(type), disjoint_(disjoint) {}

    // Trees are numbered from first_tree on if the seeds bring no numbers.
    void add_seeds(const Seeds &seeds, int64_t first_tree, int64_t num_trees) {
        const int64_t count = seeds.count;
        by_hop_.push_back(count);
        if (count == 0) return;
        check_num_nodes(count);
        reserve(count);
        Local *n_id = n_id_.data();
        for (int64_t i = 0; i < count; ++i) {
            const int64_t seed = seeds.ids[i];
            if (seed < 0 || seed >= type_.num_nodes)
                throw out_of_range("seed ", seed, of_type(), " at position ", i, " is outside [0, ",
                                   type_.num_nodes, ")");
            n_id[i] = static_cast<Local>(seed);
            if (disjoint_) {
                tree_[i] = seeds.trees == nullptr ? first_tree + i : seeds.trees[i];
                if (tree_[i] < 0 || tree_[i] >= num_trees)
                    throw out_of_range("the place ", tree_[i], " of seed ", i, of_type(), " is "
                                       "outside [0, ", num_trees, ")");
            }
            // A repeated seed keeps its place; the table has the first.
            table_.find_or_insert(key_of(i), static_cast<uint32_t>(i));
        }
        num_nodes_ = count;
    }

    // A hop expands the nodes that the one before found first.
    void begin_hop() {
        frontier_ = frontier_end_;
        frontier_end_ = num_nodes_;
    }
    void end_hop() { by_hop_.push_back(num_nodes_ - frontier_end_); }

    int64_t frontier() const { return frontier_; }
    int64_t frontier_end() const { return frontier_end_; }
    int64_t num_nodes() const { return num_nodes_; }
    const Local *ids() const { return n_id_.data(); }
    const int64_t *trees() const { return tree_.data(); }
    uint32_t tree_of(int64_t local_id) const {
        return disjoint_ ? static_cast<uint32_t>(tree_[local_id]) : 0;
    }

    // Without trees a node is found once at most.
    int64_t max_found(int64_t num_edges, int64_t num_ids) const {
        return disjoint_ ? num_edges : std::min(num_edges, num_ids);
    }

    void check_num_nodes(int64_t more_nodes) const {
        const int64_t max_nodes = num_nodes_ + more_nodes;
        const int64_t limit = std::min<int64_t>(no_local_id, std::numeric_limits<Local>::max());
        if (max_nodes >= limit)
            throw std::overflow_error("a batch of up to " + std::to_string(max_nodes) + " nodes" +
                                      of_type() + " cannot be sampled; the limit is " +
                                      std::to_string(limit));
    }

    // Makes room for more nodes. The table is filled anew when it grows, and it grows at each
    // hop: starting small keeps the early hops in the first cache levels. It grows when it is
    // needed and not when the hop is drawn, since batches may wait in between.
    void reserve(int64_t more_nodes) {
        const int64_t max_nodes = num_nodes_ + more_nodes;
        n_id_.grow(max_nodes + 1, num_nodes_);  // relabelling writes one element too many
        if (disjoint_) tree_.grow(max_nodes + 1, num_nodes_);
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

    // Writes the local ids of the sources of some edges, which must have been checked, and the
    // nodes that are new. There must be room for them. A source is in its target's tree.
    template <class Index>
    void relabel(const Index *neighbors, const NodeTable &of_targets, const Local *target,
                 int64_t num_edges, Local *source) {
        Table table = table_;
        Local *n_id = n_id_.data();
        int64_t num_nodes = num_nodes_;
        for (int64_t i = 0; i < num_edges; ++i) {
            const int64_t ahead = std::min(i + relabel_distance, num_edges - 1);
            table.prefetch(
                Table::key(node_id(neighbors[ahead]), of_targets.tree_of(target[ahead])));
            const uint32_t tree = of_targets.tree_of(target[i]);
            const uint32_t local_id = table.find_or_insert(
                Table::key(node_id(neighbors[i]), tree), static_cast<uint32_t>(num_nodes));
            source[i] = static_cast<Local>(local_id);
            // Written for every edge, kept if the node is new: cheaper than a branch.
            n_id[num_nodes] = static_cast<Local>(neighbors[i]);
            if (disjoint_) tree_[num_nodes] = tree;
            num_nodes += local_id == num_nodes;
        }
        num_nodes_ = num_nodes;
    }

    // A view for look-ups without trees. Without nodes there is no table.
    const Table &table() const { return table_; }
    // Gives the table's memory back; nothing can be relabelled any more.
    void drop_table() { slots_ = {}; }

    SampledNodes release() {
        return {std::move(n_id_), std::move(tree_), num_nodes_, std::move(by_hop_)};
    }

private:
    using Key = typename Table::Key;

    Key key_of(int64_t local_id) const {
        return Table::key(node_id(n_id_[local_id]), tree_of(local_id));
    }
    std::string of_type() const { return type_.name.empty() ? "" : " of " + type_.name; }

    const NodeType &type_;
    const bool disjoint_;
    PooledArray<Local> n_id_;
    PooledArray<int64_t> tree_;
    int64_t num_nodes_ = 0;
    std::vector<int64_t> by_hop_;

    PooledArray<typename Table::Slot> slots_;
    Table table_;
    int64_t num_slots_ = 0;

    int64_t frontier_ = 0, frontier_end_ = 0;  // local ids of the nodes that a hop expands
};

}  // namespace gnnstore
