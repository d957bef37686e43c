// Sorts a few neighbouring columns of a graph at once, in the cache.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

namespace gnnstore {

// Memory of a thread that grows and keeps no contents.
template <class T>
class Scratch {
public:
    T *get(int64_t count) {
        if (count > capacity_) {
            data_.reset();  // first, or both would be there at once
            data_ = std::make_unique_for_overwrite<T[]>(static_cast<size_t>(count));
            capacity_ = count;
        }
        return data_.get();
    }

private:
    std::unique_ptr<T[]> data_;
    int64_t capacity_ = 0;
};

// The edges [begin, end) of the whole graph: all of the targets [first_target, last_target).
struct ColumnGroup {
    int64_t begin, end;
    int64_t first_target, last_target;
};

// Sorts groups of columns by (target, source, position) and fills their part of indptr. Edges
// are sorted by source as a whole and then dealt to their columns, in the order of sources:
// counting passes cost the same for short and long columns, while a sort of each column costs
// a mispredicted branch for every other comparison. Groups should fit the second-level cache.
//
// Owns the scratch memory of a thread: of the largest group, 2 keys (8 bytes; 16 where there
// are more than 2^32 sources or edges in a group) and an edge id for each edge.
template <class Id, class EdgeId, class Low>
class ColumnSorter {
public:
    // Edge ids may be absent (a null pointer). lows[e] is the target of edge e, of which as many
    // bits are left as tell the targets of one group apart.
    ColumnSorter(int64_t num_sources, int64_t *indptr, Id *sources, EdgeId *edge_id,
                 const Low *lows)
        : source_bits_(static_cast<int>(
              std::bit_width(static_cast<uint64_t>(std::max<int64_t>(1, num_sources) - 1)))),
          indptr_(indptr),
          sources_(sources),
          edge_id_(edge_id),
          lows_(lows) {}

    // Edge ids ascend, as a stable partition leaves them, unless `ids_ascend` is false.
    void operator()(const ColumnGroup &group, bool ids_ascend) {
        constexpr int64_t max_narrow = std::numeric_limits<uint32_t>::max();
        if (source_bits_ <= 32 && group.end - group.begin <= max_narrow)
            sort<NarrowKey>(group, ids_ascend, narrow_, other_narrow_);
        else
            sort<WideKey>(group, ids_ascend, wide_, other_wide_);
    }

private:
    // A source above, and below it the edge's place in the group.
    class NarrowKey {
    public:
        NarrowKey() = default;
        NarrowKey(uint64_t source, int64_t place)
            : bits_(source << 32 | static_cast<uint64_t>(place)) {}
        uint64_t source() const { return bits_ >> 32; }
        int64_t place() const { return static_cast<int64_t>(bits_ & 0xFFFFFFFF); }
        bool operator<(const NarrowKey &other) const { return bits_ < other.bits_; }

    private:
        uint64_t bits_;
    };
    class WideKey {
    public:
        WideKey() = default;
        WideKey(uint64_t source, int64_t place) : source_(source), place_(place) {}
        uint64_t source() const { return source_; }
        int64_t place() const { return place_; }
        bool operator<(const WideKey &other) const {
            return source_ != other.source_ ? source_ < other.source_ : place_ < other.place_;
        }

    private:
        uint64_t source_;
        int64_t place_;
    };

    // Below, comparisons beat counting.
    static constexpr int64_t min_counted = 256;
    // More streams of keys than that leave the first-level cache: three passes of 8 bits take
    // 0.93 of the time of two of 12.
    static constexpr int max_digit_bits = 10;

    template <class Key>
    void sort(const ColumnGroup &group, bool ids_ascend, Scratch<Key> &keys,
              Scratch<Key> &other) {
        const int64_t size = group.end - group.begin;
        Id *const sources = sources_ + group.begin;
        EdgeId *const ids = edge_id_ ? edge_id_ + group.begin : nullptr;
        const Low *const lows = lows_ + group.begin;
        // One place further on than where it belongs: counts become starts, and starts become,
        // edge by edge, the ends that indptr asks for. No array of cursors is needed.
        int64_t *const next = indptr_ + 1 + group.first_target;
        const int64_t num_columns = group.last_target - group.first_target;
        const auto first_low = static_cast<Low>(group.first_target);
        std::fill_n(next, num_columns, 0);
        for (int64_t i = 0; i < size; ++i) ++next[static_cast<Low>(lows[i] - first_low)];
        int64_t sum = group.begin;
        for (int64_t column = 0; column < num_columns; ++column)
            sum += std::exchange(next[column], sum);

        if (size == 0) return;

        Key *sorted = keys.get(size), *spare = other.get(size);
        for (int64_t i = 0; i < size; ++i)
            sorted[i] = Key(static_cast<uint64_t>(sources[i]), i);
        EdgeId *const old_ids = ids ? ids_.get(size) : nullptr;
        if (ids) std::copy_n(ids, size, old_ids);
        const bool by_place = ids_ascend || !ids;  // else places do not order equal sources
        if (!by_place) {
            const auto largest = static_cast<uint64_t>(*std::max_element(ids, ids + size));
            counting_sort(sorted, spare, size, static_cast<int>(std::bit_width(largest)),
                          [old_ids](const Key &key) {
                              return static_cast<uint64_t>(old_ids[key.place()]);
                          });
        }
        // Exports are often sorted by one end or the other; then columns need no sort.
        if (!by_place || !(std::is_sorted(sources, sources + size) ||
                           are_sorted_columns(sources, lows, first_low, size))) {
            if (by_place && size < min_counted)
                std::sort(sorted, sorted + size);
            else
                counting_sort(sorted, spare, size, source_bits_,
                              [](const Key &key) { return key.source(); });
        }
        for (int64_t i = 0; i < size; ++i) {
            const int64_t from = sorted[i].place();
            const int64_t to = next[static_cast<Low>(lows[from] - first_low)]++;
            sources_[to] = static_cast<Id>(sorted[i].source());
            if (ids) edge_id_[to] = old_ids[from];
        }
    }

    static bool are_sorted_columns(const Id *sources, const Low *lows, Low first_low,
                                   int64_t size) {
        for (int64_t i = 1; i < size; ++i) {
            const auto low = static_cast<Low>(lows[i] - first_low);
            const auto previous = static_cast<Low>(lows[i - 1] - first_low);
            if (low < previous || (low == previous && sources[i] < sources[i - 1])) return false;
        }
        return true;
    }

    // Stable counting passes over the digits of a number of so many bits, between two arrays;
    // the result is in the first.
    template <class Key, class Number>
    void counting_sort(Key *&in, Key *&out, int64_t size, int bits, const Number &number) {
        if (bits == 0) return;
        // Fewer counters than keys: clearing them is part of the work.
        const int fitting = static_cast<int>(std::bit_width(static_cast<uint64_t>(size))) - 2;
        const int most = std::clamp(fitting, 4, max_digit_bits);
        const int num_passes = (bits + most - 1) / most;
        const int width = (bits + num_passes - 1) / num_passes;
        const uint64_t mask = (uint64_t{1} << width) - 1;
        places_.assign(static_cast<size_t>(num_passes) << width, 0);
        // All counts at once: they do not depend on the order.
        for (int64_t i = 0; i < size; ++i) {
            const uint64_t value = number(in[i]);
            int64_t *counts = places_.data();
            for (int shift = 0; shift < bits; shift += width, counts += mask + 1)
                ++counts[value >> shift & mask];
        }
        int64_t *places = places_.data();
        for (int shift = 0; shift < bits; shift += width, places += mask + 1) {
            if (places[number(in[0]) >> shift & mask] == size) continue;
            int64_t sum = 0;
            for (uint64_t digit = 0; digit <= mask; ++digit)
                sum += std::exchange(places[digit], sum);
            for (int64_t i = 0; i < size; ++i) out[places[number(in[i]) >> shift & mask]++] = in[i];
            std::swap(in, out);
        }
    }

    const int source_bits_;
    int64_t *const indptr_;
    Id *const sources_;
    EdgeId *const edge_id_;
    const Low *const lows_;
    Scratch<NarrowKey> narrow_, other_narrow_;
    Scratch<WideKey> wide_, other_wide_;
    Scratch<EdgeId> ids_;
    std::vector<int64_t> places_;
};

}  // namespace gnnstore
