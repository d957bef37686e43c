// Edges that a batch must not sample, as ranges of positions in indices: the edges that link
// prediction is trained on, which would otherwise tell the model their own answer.
//
// They are left out when positions are drawn and not afterwards, so that fan-outs stay full. A
// batch has thousands of them and expands tens of thousands of nodes, few of which have any: a
// filter of 8 KB rules out most of the others.
#pragma once

#include <algorithm>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "kernels/base/errors.h"
#include "kernels/base/relabel.h"
#include "kernels/sampling/sampling_draws.h"

namespace gnnstore {

class ExcludedEdges {
public:
    ExcludedEdges() = default;

    // Range i is [begins[i], ends[i]) in the in-neighbour list of nodes[i]. Throws
    // std::invalid_argument unless nodes and ranges ascend and no range is empty.
    ExcludedEdges(const int64_t *nodes, const int64_t *begins, const int64_t *ends, int64_t count)
        : nodes_(nodes, nodes + count),
          begins_(begins, begins + count),
          ends_(ends, ends + count),
          filter_(count == 0 ? 0 : num_words) {
        for (int64_t i = 0; i < count; ++i) {
            if (begins[i] >= ends[i] || (i > 0 && (nodes[i] < nodes[i - 1] || begins[i] < ends[i - 1])))
                throw invalid("excluded edges: range ", i, " is empty or does not follow the one "
                              "before it");
            filter_[word_of(nodes[i])] |= bit_of(nodes[i]);
            const bool is_first = i == 0 || nodes[i] != nodes[i - 1];
            const int64_t before = is_first ? 0 : removed_.back();
            shifted_.push_back(begins[i] - before);
            removed_.push_back(before + ends[i] - begins[i]);
        }
    }

    bool empty() const { return nodes_.empty(); }

    // How many edges of a node's list are excluded. Throws std::invalid_argument if its ranges
    // do not lie in the list.
    int64_t count_in(int64_t node, NeighborList list) const {
        if (!may_have(node)) return 0;
        const auto [first, last] = ranges_of(node);
        if (first == last) return 0;
        if (begins_[first] < list.start || ends_[last - 1] > list.start + list.degree)
            throw invalid("excluded edges: range [", begins_[first], ", ", ends_[last - 1], ") is "
                          "not in the in-neighbour list of node ", node);
        return removed_[last - 1];
    }

    // Moves positions that were drawn as if the list had only its other edges to these.
    void skip(int64_t node, int64_t *positions, int64_t count) const {
        const auto [first, last] = ranges_of(node);
        const int64_t *begin = shifted_.data() + first, *end = shifted_.data() + last;
        for (int64_t k = 0; k < count; ++k) {
            const int64_t *after = std::upper_bound(begin, end, positions[k]);
            if (after != begin) positions[k] += removed_[after - shifted_.data() - 1];
        }
    }

    // Calls use(first position, that after the last) for the ranges of a node, in order.
    template <class Use>
    void for_each_range(int64_t node, const Use &use) const {
        const auto [first, last] = ranges_of(node);
        for (int64_t i = first; i < last; ++i) use(begins_[i], ends_[i]);
    }

    bool has(int64_t position) const {
        const auto after = std::upper_bound(begins_.begin(), begins_.end(), position);
        return after != begins_.begin() && position < ends_[after - begins_.begin() - 1];
    }

private:
    static constexpr uint64_t num_words = 1024;  // of 64 bits

    static uint64_t hash(int64_t node) {
        return static_cast<uint64_t>(node) * hash_multiplier >> 48;
    }
    static uint64_t word_of(int64_t node) { return hash(node) / 64; }
    static uint64_t bit_of(int64_t node) { return uint64_t{1} << (hash(node) % 64); }
    bool may_have(int64_t node) const { return (filter_[word_of(node)] & bit_of(node)) != 0; }

    std::pair<int64_t, int64_t> ranges_of(int64_t node) const {
        const auto [first, last] = std::equal_range(nodes_.begin(), nodes_.end(), node);
        return {first - nodes_.begin(), last - nodes_.begin()};
    }

    std::vector<int64_t> nodes_, begins_, ends_;
    // By range: where it would begin without the ranges of the same node before it, and the
    // number of positions in these and in it.
    std::vector<int64_t> shifted_, removed_;
    std::vector<uint64_t> filter_;
};

}  // namespace gnnstore
