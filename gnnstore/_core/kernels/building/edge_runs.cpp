#include "kernels/building/edge_runs.h"

#include <algorithm>
#include <array>
#include <bit>
#include <limits>
#include <string>
#include <type_traits>
#include <utility>

#include "kernels/base/errors.h"
#include "kernels/base/parallel.h"

namespace gnnstore {
namespace {

// One pass by the leading bits of the target, after which what belongs together fits the
// cache: 2^11 buckets are as many as can be written to side by side without thrashing the TLB.
constexpr int max_bucket_bits = 11;
// Below, comparisons beat counting.
constexpr int64_t max_compared = 192;

template <class Edge>
bool before(const Edge &a, const Edge &b) {
    if (a.target != b.target) return a.target < b.target;
    if (a.source != b.source) return a.source < b.source;
    return a.position < b.position;
}

inline bool before(const NarrowEdge &a, const NarrowEdge &b) {
    const uint64_t x = uint64_t{a.target} << 32 | a.source;
    const uint64_t y = uint64_t{b.target} << 32 | b.source;
    return x != y ? x < y : a.position < b.position;
}

template <class Edge>
bool same_ends(const Edge &a, const Edge &b) {
    return a.target == b.target && a.source == b.source;
}

// A stable counting pass by one byte.
template <class Edge, class Digit>
void counting_pass(const Edge *in, Edge *out, int64_t num_edges, const Digit &digit) {
    std::array<int64_t, 256> place{};
    for (int64_t i = 0; i < num_edges; ++i) ++place[digit(in[i])];
    int64_t sum = 0;
    for (int64_t &entry : place) sum += std::exchange(entry, sum);
    for (int64_t i = 0; i < num_edges; ++i) out[place[digit(in[i])]++] = in[i];
}

// Sorts what lies in `from`; the result lies in `to`.
template <class Edge>
void sort_bucket(Edge *from, Edge *to, int64_t num_edges) {
    if (num_edges <= max_compared) {
        std::copy_n(from, num_edges, to);
        std::sort(to, to + num_edges, before<Edge>);
        return;
    }
    using Word = decltype(Edge::target);
    Word varying_source = 0, varying_target = 0;  // bits in which edges differ
    for (int64_t i = 1; i < num_edges; ++i) {
        varying_source |= from[i].source ^ from[0].source;
        varying_target |= from[i].target ^ from[0].target;
    }
    Edge *in = from, *out = to;
    for (int shift = 0; shift < std::numeric_limits<Word>::digits; shift += 8) {
        if ((varying_source >> shift & 0xFF) == 0) continue;
        counting_pass(in, out, num_edges,
                      [shift](const Edge &edge) { return edge.source >> shift & 0xFF; });
        std::swap(in, out);
    }
    for (int shift = 0; shift < std::numeric_limits<Word>::digits; shift += 8) {
        if ((varying_target >> shift & 0xFF) == 0) continue;
        counting_pass(in, out, num_edges,
                      [shift](const Edge &edge) { return edge.target >> shift & 0xFF; });
        std::swap(in, out);
    }
    if (in != to) std::copy_n(in, num_edges, to);
}

using Key = unsigned __int128;  // target, source and slice: 48 + 48 + 32 bits
constexpr Key end_key = ~Key{0};

struct Record {
    int64_t target, source, position;
};

// Reads a slice record by record.
class Cursor {
public:
    Cursor(const RunSlice &slice, uint32_t number, int64_t first_origin)
        : next_(slice.records),
          left_(slice.num_records),
          is_wide_(slice.is_wide),
          number_(number),
          first_id_(slice.first_id),
          origin_(first_origin - 1) {}

    // Steps to the next record; returns its key, or end_key.
    Key step() {
        if (left_ == 0) return end_key;
        --left_;
        ++origin_;
        uint64_t target, source;
        if (is_wide_) {
            WideEdge edge;
            std::copy_n(next_, sizeof edge, reinterpret_cast<uint8_t *>(&edge));
            next_ += sizeof edge;
            target = edge.target, source = edge.source, position_ = edge.position;
        } else {
            NarrowEdge edge;
            std::copy_n(next_, sizeof edge, reinterpret_cast<uint8_t *>(&edge));
            next_ += sizeof edge;
            target = edge.target, source = edge.source, position_ = edge.position;
        }
        if ((target | source) >> 48) throw invalid("a run has an id beyond 2^48");
        const Key key = Key{target} << 80 | Key{source} << 32 | number_;
        if (key < latest_) throw invalid("a run is not sorted");
        return latest_ = key;
    }
    int64_t id() const { return first_id_ + static_cast<int64_t>(position_); }
    int64_t origin() const { return origin_; }

private:
    const uint8_t *next_;
    int64_t left_;
    bool is_wide_;
    uint32_t number_;
    int64_t first_id_, origin_;
    uint64_t position_ = 0;
    Key latest_ = 0;
};

// A tournament among the slices, of which each inner node remembers the loser: the next
// winner is found by replaying the way of the latest one up to the root.
class Tournament {
public:
    explicit Tournament(std::vector<Cursor> &cursors) : cursors_(cursors) {
        width_ = std::bit_ceil(std::max<size_t>(1, cursors.size()));
        std::vector<Key> winners(2 * width_, end_key);
        losers_.assign(width_, end_key);
        for (size_t i = 0; i < cursors.size(); ++i) winners[width_ + i] = cursors[i].step();
        for (size_t node = width_ - 1; node > 0; --node) {
            const Key a = winners[2 * node], b = winners[2 * node + 1];
            winners[node] = std::min(a, b);
            losers_[node] = std::max(a, b);
        }
        winner_ = winners[1];
    }
    Key winner() const { return winner_; }
    Cursor &cursor() const { return cursors_[static_cast<uint32_t>(winner_)]; }
    void step() {
        size_t node = width_ + static_cast<uint32_t>(winner_);
        Key rising = cursor().step();
        while (node >>= 1) {
            const Key other = losers_[node];
            const bool falls = other < rising;  // no branch: its outcome is random
            losers_[node] = falls ? rising : other;
            rising = falls ? other : rising;
        }
        winner_ = rising;
    }

private:
    std::vector<Cursor> &cursors_;
    size_t width_;
    std::vector<Key> losers_;
    Key winner_;
};

template <class Id, class EdgeId>
class Emitter {
public:
    Emitter(const MergeRange &range, const MergeOutput<Id, EdgeId> &out)
        : range_(range), out_(out), next_loop_(range.first_loop) {}

    void edge(int64_t target, int64_t source, int64_t id, int64_t origin) {
        if (next_loop_ < range_.end_loop && next_loop_ <= target) {
            // Loops that belong before this edge: of lower nodes, and of its target.
            loops_until(std::min(range_.end_loop, source > target ? target + 1 : target));
            if (source == target && next_loop_ == target) ++next_loop_;
        }
        put(target, source, id, origin);
    }
    MergeCounts finish() {
        loops_until(range_.end_loop);
        return counts_;
    }

private:
    void loops_until(int64_t end) {
        for (; next_loop_ < end; ++next_loop_) {
            if (next_loop_ == range_.present_loop) continue;
            put(next_loop_, next_loop_, range_.first_loop_id + counts_.num_added, -1);
            ++counts_.num_added;
        }
    }
    void put(int64_t target, int64_t source, int64_t id, int64_t origin) {
        const int64_t column = target - range_.first_column;
        if (column < 0 || column >= range_.num_columns || source >= range_.num_nodes)
            throw invalid("a run has an edge from ", source, " to ", target, " in a wrong place");
        const int64_t i = counts_.num_edges++;
        if (out_.sources) out_.sources[i] = static_cast<Id>(source);
        if (out_.edge_ids) out_.edge_ids[i] = static_cast<EdgeId>(id);
        if (out_.origins) out_.origins[i] = static_cast<int32_t>(origin);
        if (out_.column_counts) ++out_.column_counts[column];
    }

    const MergeRange &range_;
    const MergeOutput<Id, EdgeId> &out_;
    int64_t next_loop_;
    MergeCounts counts_{0, 0};
};

}  // namespace

template <class Edge, class Id>
int64_t pack_edges(const Id *sources, const Id *targets, int64_t num_edges, int64_t first_position,
                   bool drop_self_loops, Edge *out) {
    using Word = decltype(Edge::target);
    uint64_t bits = 0;  // a negative id sets the highest
    int64_t count = 0;
    for (int64_t i = 0; i < num_edges; ++i) {
        bits |= static_cast<uint64_t>(sources[i]) | static_cast<uint64_t>(targets[i]);
        out[count] = {static_cast<Word>(targets[i]), static_cast<Word>(sources[i]),
                      static_cast<Word>(first_position + i)};
        count += !(drop_self_loops && sources[i] == targets[i]);
    }
    constexpr int id_bits = std::is_same_v<Edge, NarrowEdge> ? 32 : 48;
    if (bits >> id_bits)
        throw out_of_range("an edge has an id outside [0, 2^", id_bits, ")");
    return count;
}

template <class Edge>
void sort_edges(Edge *edges, Edge *scratch, int64_t num_edges, int num_threads) {
    check_num_threads(num_threads);
    using Word = decltype(Edge::target);
    Word largest = 0;
    bool sorted = true;  // exports often are
    for (int64_t i = 0; i < num_edges; ++i) {
        largest = std::max(largest, edges[i].target);
        sorted &= i == 0 || !before(edges[i], edges[i - 1]);
    }
    if (sorted) return;
    const int target_bits = static_cast<int>(std::bit_width(largest));
    const int bucket_bits = std::min(max_bucket_bits, target_bits);
    const int shift = target_bits - bucket_bits;
    const auto num_buckets = size_t{1} << bucket_bits;

    const int64_t num_parts = std::max<int64_t>(
        1, std::min<int64_t>(num_threads, num_edges / static_cast<int64_t>(4 * num_buckets)));
    std::vector<std::vector<int64_t>> places(static_cast<size_t>(num_parts),
                                             std::vector<int64_t>(num_buckets));
    const auto part_begin = [&](int64_t part) { return num_edges / num_parts * part; };
    const auto part_end = [&](int64_t part) {
        return part + 1 == num_parts ? num_edges : part_begin(part + 1);
    };
    run_workers(num_threads, num_parts, [&](TaskQueue &queue) {
        for (int64_t part; queue.take(part);) {
            auto &counts = places[static_cast<size_t>(part)];
            for (int64_t i = part_begin(part); i < part_end(part); ++i)
                ++counts[edges[i].target >> shift];
        }
    });
    std::vector<int64_t> bounds(num_buckets + 1);
    int64_t sum = 0;
    for (size_t bucket = 0; bucket < num_buckets; ++bucket) {
        bounds[bucket] = sum;
        for (auto &counts : places) sum += std::exchange(counts[bucket], sum);
    }
    bounds[num_buckets] = sum;
    run_workers(num_threads, num_parts, [&](TaskQueue &queue) {
        for (int64_t part; queue.take(part);) {
            auto &place = places[static_cast<size_t>(part)];
            for (int64_t i = part_begin(part); i < part_end(part); ++i)
                scratch[place[edges[i].target >> shift]++] = edges[i];
        }
    });
    run_workers(num_threads, static_cast<int64_t>(num_buckets), [&](TaskQueue &queue) {
        for (int64_t bucket; queue.take(bucket);) {
            const int64_t begin = bounds[static_cast<size_t>(bucket)];
            const int64_t end = bounds[static_cast<size_t>(bucket) + 1];
            sort_bucket(scratch + begin, edges + begin, end - begin);
        }
    });
}

template <class Edge>
int64_t drop_repeated_edges(Edge *edges, int64_t num_edges) {
    return std::unique(edges, edges + num_edges, same_ends<Edge>) - edges;
}

int64_t merge_capacity(const std::vector<RunSlice> &slices, const MergeRange &range) {
    int64_t total = std::max<int64_t>(0, range.end_loop - range.first_loop);
    for (const RunSlice &slice : slices) total += slice.num_records;
    return total;
}

template <class Id, class EdgeId>
MergeCounts merge_runs(const std::vector<RunSlice> &slices, const MergeRange &range,
                       const MergeOutput<Id, EdgeId> &out) {
    std::vector<Cursor> cursors;
    cursors.reserve(slices.size());
    int64_t first_origin = 0;
    for (const RunSlice &slice : slices) {
        cursors.emplace_back(slice, static_cast<uint32_t>(cursors.size()), first_origin);
        first_origin += slice.num_records;
    }
    Tournament tournament(cursors);
    Emitter<Id, EdgeId> emitter(range, out);
    // The ends of the latest edge: what stands above the slice's number in its key.
    Key latest = end_key;
    if (range.skip_first && tournament.winner() != end_key) latest = tournament.winner() >> 32;
    for (; tournament.winner() != end_key; tournament.step()) {
        const Key ends = tournament.winner() >> 32;
        if (range.unique && ends == latest) continue;
        latest = ends;
        const Cursor &cursor = tournament.cursor();
        emitter.edge(static_cast<int64_t>(ends >> 48),
                     static_cast<int64_t>(static_cast<uint64_t>(ends) & (max_nodes - 1)),
                     cursor.id(), cursor.origin());
    }
    return emitter.finish();
}

template int64_t pack_edges(const int32_t *, const int32_t *, int64_t, int64_t, bool, NarrowEdge *);
template int64_t pack_edges(const int64_t *, const int64_t *, int64_t, int64_t, bool, NarrowEdge *);
template int64_t pack_edges(const int32_t *, const int32_t *, int64_t, int64_t, bool, WideEdge *);
template int64_t pack_edges(const int64_t *, const int64_t *, int64_t, int64_t, bool, WideEdge *);
template void sort_edges(NarrowEdge *, NarrowEdge *, int64_t, int);
template void sort_edges(WideEdge *, WideEdge *, int64_t, int);
template int64_t drop_repeated_edges(NarrowEdge *, int64_t);
template int64_t drop_repeated_edges(WideEdge *, int64_t);
template MergeCounts merge_runs(const std::vector<RunSlice> &, const MergeRange &,
                                const MergeOutput<int32_t, int32_t> &);
template MergeCounts merge_runs(const std::vector<RunSlice> &, const MergeRange &,
                                const MergeOutput<int32_t, int64_t> &);
template MergeCounts merge_runs(const std::vector<RunSlice> &, const MergeRange &,
                                const MergeOutput<int64_t, int32_t> &);
template MergeCounts merge_runs(const std::vector<RunSlice> &, const MergeRange &,
                                const MergeOutput<int64_t, int64_t> &);

}  // namespace gnnstore
