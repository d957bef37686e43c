// Sorts one column of a graph by source, keeping edges of equal source in their order.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <utility>
#include <vector>

namespace gnnstore {

// Owns the scratch memory of a thread. Edge ids may be absent (a null pointer); where they
// are present they must be ascending on entry, as a stable scatter leaves them.
template <class Id, class EdgeId>
class ColumnSorter {
public:
    explicit ColumnSorter(int64_t num_sources)
        : source_bits_(static_cast<int>(std::bit_width(static_cast<uint64_t>(num_sources)))) {}

    void operator()(Id *sources, EdgeId *edge_id, int64_t length) {
        // Exports are often sorted by source already, and then so is every column.
        if (std::is_sorted(sources, sources + length)) return;
        if (length <= max_insertion_length)
            insertion_sort(sources, edge_id, length);
        else if (source_bits_ <= 32 && length <= int64_t{0xFFFFFFFF})
            sort_packed(sources, edge_id, length);
        else
            sort_wide(sources, edge_id, length);
    }

private:
    // Measured on an R-MAT graph: a third of the edges lie in columns this short.
    static constexpr int64_t max_insertion_length = 24;
    // From here on counting passes beat comparisons.
    static constexpr size_t min_radix_length = 512;

    static void insertion_sort(Id *sources, EdgeId *edge_id, int64_t length) {
        for (int64_t i = 1; i < length; ++i) {
            const Id source = sources[i];
            const EdgeId id = edge_id ? edge_id[i] : EdgeId{};
            int64_t j = i;
            for (; j > 0 && sources[j - 1] > source; --j) {
                sources[j] = sources[j - 1];
                if (edge_id) edge_id[j] = edge_id[j - 1];
            }
            sources[j] = source;
            if (edge_id) edge_id[j] = id;
        }
    }

    // One 64-bit key per edge: the source above, and below it what keeps the order of equal
    // sources: the edge id where it has 32 bits, else the place in the column.
    void sort_packed(Id *sources, EdgeId *edge_id, int64_t length) {
        constexpr bool id_in_key = sizeof(EdgeId) == 4;
        const auto n = static_cast<size_t>(length);
        keys_.resize(n);
        for (size_t i = 0; i < n; ++i) {
            const uint64_t low = id_in_key && edge_id ? static_cast<uint32_t>(edge_id[i]) : i;
            keys_[i] = static_cast<uint64_t>(sources[i]) << 32 | low;
        }
        if (n < min_radix_length)
            std::sort(keys_.begin(), keys_.end());
        else
            radix_sort();
        if (edge_id && !id_in_key) ids_.assign(edge_id, edge_id + n);
        for (size_t i = 0; i < n; ++i) {
            const auto low = static_cast<uint32_t>(keys_[i]);
            sources[i] = static_cast<Id>(keys_[i] >> 32);
            if (edge_id) edge_id[i] = id_in_key ? static_cast<EdgeId>(low) : ids_[low];
        }
    }

    // Stable counting passes over the source's bytes; the low halves are in order already.
    void radix_sort() {
        other_.resize(keys_.size());
        for (int shift = 32; shift < 32 + source_bits_; shift += 8) {
            std::array<size_t, 256> place{};
            for (const uint64_t key : keys_) ++place[key >> shift & 0xFF];
            if (place[keys_[0] >> shift & 0xFF] == keys_.size()) continue;
            size_t sum = 0;
            for (size_t &entry : place) sum += std::exchange(entry, sum);
            for (const uint64_t key : keys_) other_[place[key >> shift & 0xFF]++] = key;
            keys_.swap(other_);
        }
    }

    // Sources beyond 32 bits: rare enough for the plain way.
    void sort_wide(Id *sources, EdgeId *edge_id, int64_t length) {
        const auto n = static_cast<size_t>(length);
        wide_.resize(n);
        for (size_t i = 0; i < n; ++i) wide_[i] = {sources[i], edge_id ? edge_id[i] : EdgeId{}};
        std::stable_sort(wide_.begin(), wide_.end(),
                         [](const Edge &a, const Edge &b) { return a.source < b.source; });
        for (size_t i = 0; i < n; ++i) {
            sources[i] = wide_[i].source;
            if (edge_id) edge_id[i] = wide_[i].id;
        }
    }

    struct Edge {
        Id source;
        EdgeId id;
    };

    const int source_bits_;
    std::vector<uint64_t> keys_, other_;
    std::vector<EdgeId> ids_;
    std::vector<Edge> wide_;
};

}  // namespace gnnstore
