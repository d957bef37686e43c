// The edges of one type in a batch: the lists of a hop's frontier, what is chosen of them, and
// local ids.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "kernels/base/errors.h"
#include "kernels/sampling/edge_choosers.h"
#include "kernels/sampling/node_table.h"
#include "kernels/sampling/sampling.h"

namespace gnnstore {

template <class Local, class Table>
class HopEdges {
public:
    using Nodes = NodeTable<Local, Table>;

    // The times are the seeds', by tree.
    HopEdges(const EdgeType &type, const SamplingOptions &options,
             const std::vector<int64_t> &seed_times, Nodes &sources, Nodes &targets)
        : type_(type),
          options_(options),
          seed_times_(seed_times),
          sources_(sources),
          targets_(targets),
          excludes_(!type.excluded.empty()) {}

    const EdgeType &type() const { return type_; }
    const Nodes &target_nodes() const { return targets_; }

    // Begins a hop: looks up the lists of the frontier. Next: choose, or choose_lists for all of
    // the frontier if what lies along the lists is needed; then relabel.
    void begin(size_t hop) {
        hop_ = hop;
        fanout_ = type_.fanouts[hop];
        hop_edges_ = 0;
        lists_ = {};
        counts_ = {};
        if (fanout_ == 0 || targets_.frontier() == targets_.frontier_end()) return;
        const int64_t most_edges = read_lists();
        sources_.check_num_nodes(sources_.max_found(most_edges, type_.num_src_nodes));
        move_edges(num_edges_ + most_edges);
        if (needs_lists()) counts_ = PooledArray<int64_t>(frontier_size());
    }

    int64_t frontier_size() const { return targets_.frontier_end() - targets_.frontier(); }
    bool needs_lists() const {
        return lists_.raw() != nullptr &&
               (type_.time.timing != Timing::none || (type_.weight.is_weighted && fanout_ > 0));
    }
    // The list of the i-th node of the frontier, and the node.
    NeighborList list(int64_t i) const { return lists_[i]; }
    int64_t node(int64_t i) const { return targets_.ids()[targets_.frontier() + i]; }

    // Chooses the hop's edges and returns how many there are.
    int64_t choose() {
        if (lists_.raw() != nullptr) choose_positions();
        return hop_edges_;
    }
    // Chooses those into nodes `from` to `to` of the frontier; columns_of(i) is what lies along the
    // list of the i-th, and chosen(i, columns, positions, count) is called once its are. Parts of the
    // frontier come in order.
    template <class ColumnsOf, class Chosen>
    void choose_lists(int64_t from, int64_t to, const ColumnsOf &columns_of,
                      const Chosen &chosen) {
        const uint32_t word = draw_word();
        for (int64_t i = from; i < to; ++i) {
            const int64_t local_id = targets_.frontier() + i;
            int64_t *position = edge_pos_.data() + num_edges_ + hop_edges_;
            const ListColumns columns = columns_of(i);
            const int64_t count = choose_of_list(lists_[i], static_cast<int64_t>(draw_id(node(i))),
                                                 word, targets_.tree_of(local_id), columns,
                                                 position);
            chosen(i, columns, position, count);
            std::fill_n(targets() + num_edges_ + hop_edges_, count, static_cast<Local>(local_id));
            counts_[i] = count;
            hop_edges_ += count;
        }
    }
    int64_t num_chosen_edges() const { return hop_edges_; }
    // The same for all, if the columns are in memory.
    int64_t choose_in_memory() {
        const auto at = [](const void *column, int64_t width, int64_t start) -> const void * {
            return static_cast<const char *>(column) + width * start;
        };
        const auto columns_of = [&](int64_t i) {
            const int64_t start = lists_[i].start;
            ListColumns columns;
            if (type_.time.timing != Timing::none) {
                columns.order = at(type_.time.order, type_.time.is_wide ? 4 : 2, start);
                columns.indices = at(type_.indices, type_.is_wide ? 8 : 4, start);
                if (type_.time.timing == Timing::edges) columns.times = type_.time.times + start;
            } else {
                columns.sums = type_.weight.sums + start;
            }
            return columns;
        };
        choose_lists(0, frontier_size(), columns_of, [](auto &&...) {});
        return hop_edges_;
    }

    // Where in indices the sources of the hop's edges stand.
    const int64_t *positions() const { return edge_pos_.data() + num_edges_; }

    // Calls use(node, a node some iterations ahead, list, number of edges) for the nodes of the
    // frontier, in order.
    template <class Use>
    void for_each_list(const Use &use) const {
        if (hop_edges_ == 0) return;
        const Local *n_id = targets_.ids();
        const int64_t begin = targets_.frontier(), end = targets_.frontier_end();
        for (int64_t i = begin; i < end; ++i) {
            const Local ahead = n_id[std::min(i + lists_distance, end - 1)];
            const NeighborList list = lists_[i - begin];
            const int64_t count =
                counts_.raw() != nullptr
                    ? counts_[i - begin]
                    : num_chosen(list.num_eligible(), fanout_, options_.replace);
            use(int64_t{n_id[i]}, int64_t{ahead}, list, count);
        }
    }

    // Takes the sources of the hop's edges, which must have been checked: writes their local
    // ids, and the nodes that are new.
    template <class Index>
    void relabel(const Index *neighbors) {
        if (hop_edges_ > 0) {
            sources_.reserve(sources_.max_found(hop_edges_, type_.num_src_nodes));
            sources_.relabel(neighbors, targets_, targets() + num_edges_, hop_edges_,
                             edge_index_.data() + num_edges_);
        }
        num_edges_ += hop_edges_;
        by_hop_.push_back(hop_edges_);
    }

    // All edges between the sampled nodes replace the sampled ones: for each node, in order
    // of local ids, its in-neighbour list without the nodes that are not in the batch.
    void drop_edges(int64_t capacity) {
        num_edges_ = 0;
        edge_capacity_ = capacity;
        edge_index_ = PooledArray<Local>(2 * capacity);
        edge_pos_ = PooledArray<int64_t>(capacity);
    }
    template <class Index>
    int64_t count_inner_edges(NeighborList list, const Index *neighbors) const {
        int64_t count = 0;
        for_each_inner_edge(list, neighbors, [&](int64_t, uint32_t) { ++count; });
        return count;
    }
    // Needs room for them. Part of a list is a list too.
    template <class Index>
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

    NeighborList list_of(int64_t target) const { return list_of_node(targets_.ids()[target]); }

    template <class Index>
    bool outside(Index neighbor) const {
        return node_id(neighbor) >= static_cast<uint64_t>(type_.num_src_nodes);
    }
    // Throws if one of the neighbours that were read is not a node.
    template <class Index>
    void check_neighbors(const Index *neighbors, const int64_t *positions, int64_t count) const {
        bool is_outside = false;
        for (int64_t i = 0; i < count; ++i) is_outside |= outside(neighbors[i]);
        if (!is_outside) return;
        for (int64_t i = 0; i < count; ++i) check_neighbor(neighbors[i], positions[i]);
    }
    template <class Index>
    void check_neighbor(Index neighbor, int64_t position) const {
        if (outside(neighbor))
            throw invalid("indices", of_type(), ": the node id ", neighbor, " at position ",
                          position, " is outside [0, ", type_.num_src_nodes, ")");
    }

    SampledEdges release() {
        if (edge_capacity_ != num_edges_) move_edges(num_edges_);
        return {std::move(edge_index_), std::move(edge_pos_), num_edges_, std::move(by_hop_)};
    }

private:
    // Far above what fits in memory, and far below what overflows in sums and products.
    static constexpr int64_t max_edges = int64_t{1} << 48;

    // Looks up the lists of the frontier and returns how many edges they give.
    int64_t read_lists() {
        const int64_t begin = targets_.frontier(), end = targets_.frontier_end();
        lists_ = PooledArray<NeighborList>(end - begin);
        const Local *n_id = targets_.ids();
        int64_t hop_edges = 0;
        for (int64_t i = begin; i < end; ++i) {
            const int64_t ahead = n_id[std::min(i + lists_distance, end - 1)];
            __builtin_prefetch(&type_.indptr[std::min(ahead, type_.num_nodes)]);
            NeighborList list = list_of_node(n_id[i]);
            if (excludes_) list.num_excluded = type_.excluded.count_in(n_id[i], list);
            lists_[i - begin] = list;
            hop_edges += num_chosen(list.num_eligible(), fanout_, options_.replace);
            if (hop_edges > max_edges)
                throw std::overflow_error("a hop of more than 2^48 edges cannot be sampled");
        }
        return hop_edges;
    }

    // What keys the draws of a target node that has a list.
    uint64_t draw_id(int64_t node) const {
        if (type_.draw_ids == nullptr) return static_cast<uint64_t>(node);
        if (type_.are_draw_ids_wide)
            return node_id(static_cast<const int64_t *>(type_.draw_ids)[node]);
        return node_id(static_cast<const int32_t *>(type_.draw_ids)[node]);
    }

    uint32_t draw_word() const { return static_cast<uint32_t>(hop_) | type_.number << 8; }

    // Writes edge_pos and the targets of the hop's edges.
    void choose_positions() {
        const int64_t begin = targets_.frontier(), end = targets_.frontier_end();
        const Local *n_id = targets_.ids();
        const uint32_t word = draw_word();
        int64_t *position = edge_pos_.data() + num_edges_;
        Local *target = targets() + num_edges_;
        for (int64_t i = begin; i < end; ++i) {
            const NeighborList list = lists_[i - begin];
            const int64_t count = num_chosen(list.num_eligible(), fanout_, options_.replace);
            chooser_.choose(options_.key, draw_id(n_id[i]), word, targets_.tree_of(i),
                            {list.start, list.num_eligible()}, fanout_, options_.replace, position);
            if (list.num_excluded != 0) type_.excluded.skip(n_id[i], position, count);
            std::fill_n(target, count, static_cast<Local>(i));
            position += count;
            target += count;
        }
        hop_edges_ = position - edge_pos_.data() - num_edges_;
    }

    int64_t choose_of_list(NeighborList list, int64_t node, uint32_t word, uint32_t tree,
                           const ListColumns &columns, int64_t *out) {
        if (type_.time.timing == Timing::none)
            return weights_.choose(columns.sums, options_.key, node, word, tree, list,
                                   type_.excluded, fanout_, options_.replace, out);
        const auto with_times = [&](const auto &time_at) {
            const auto in_order = [&](const auto *order) {
                const TimedList timed(order, list.degree, time_at);
                const TimeRange range = TimeRange::up_to(seed_times_[tree], options_.window);
                return times_.choose(timed, range, options_.latest, options_.key, node, word, tree,
                                     list, type_.excluded, fanout_, options_.replace, out);
            };
            if (type_.time.is_wide) return in_order(static_cast<const uint32_t *>(columns.order));
            return in_order(static_cast<const uint16_t *>(columns.order));
        };
        if (type_.time.timing == Timing::edges)
            return with_times([&](int64_t place) { return columns.times[place]; });
        return with_width(type_.is_wide, [&]<class Index>(Index) {
            const auto *indices = static_cast<const Index *>(columns.indices);
            return with_times([&](int64_t place) {
                check_neighbor(indices[place], list.start + place);
                return type_.time.times[indices[place]];
            });
        });
    }

    // Calls use(position, local id of the source) for the edges from sampled nodes that
    // stand in a list; its neighbours are checked.
    template <class Index, class Use>
    void for_each_inner_edge(NeighborList list, const Index *neighbors, const Use &use) const {
        const bool has_sources = sources_.num_nodes() > 0;
        const Table table = sources_.table();
        for (int64_t k = 0; k < list.degree; ++k) {
            const Index ahead = neighbors[std::min(k + relabel_distance, list.degree - 1)];
            if (has_sources) table.prefetch(Table::key(node_id(ahead), 0));
            check_neighbor(neighbors[k], list.start + k);
            if (!has_sources) continue;
            const uint32_t local_id = table.find(Table::key(node_id(neighbors[k]), 0));
            if (local_id == no_local_id) continue;
            if (excludes_ && type_.excluded.has(list.start + k)) continue;
            use(list.start + k, local_id);
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
        if (node >= type_.num_nodes)
            throw invalid("indptr", of_type(), ": node ", node, " is to be expanded, but only "
                          "nodes in [0, ", type_.num_nodes, ") have in-neighbour lists");
        const int64_t start = type_.indptr[node], stop = type_.indptr[node + 1];
        if (start < 0 || start > stop || stop > type_.num_edges)
            throw invalid("indptr", of_type(), ": the in-neighbours of node ", node, " stand at [",
                          start, ", ", stop, "), which is not a range within [0, ", type_.num_edges,
                          ")");
        return {start, stop - start};
    }

    std::string of_type() const { return type_.name.empty() ? "" : " of " + type_.name; }
    Local *targets() const { return edge_index_.data() + edge_capacity_; }

    const EdgeType &type_;
    const SamplingOptions &options_;
    const std::vector<int64_t> &seed_times_;
    Nodes &sources_, &targets_;
    const bool excludes_;

    PooledArray<Local> edge_index_;  // [2, edge_capacity_]
    PooledArray<int64_t> edge_pos_;
    int64_t num_edges_ = 0;
    int64_t edge_capacity_ = 0;
    std::vector<int64_t> by_hop_;

    size_t hop_ = 0;                      // that is being drawn
    int64_t fanout_ = 0, hop_edges_ = 0;  // of it
    PooledArray<NeighborList> lists_;     // of its frontier
    PooledArray<int64_t> counts_;         // edges of each list, if their number is not known ahead
    PositionChooser chooser_;
    TimeChooser times_;
    WeightChooser weights_;
};

}  // namespace gnnstore
