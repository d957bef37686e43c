#include "kernels/csc_build.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <limits>
#include <numeric>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "kernels/column_sort.h"
#include "kernels/errors.h"
#include "kernels/parallel.h"
#include "kernels/pooled_array.h"
#include "kernels/stream_copy.h"

namespace gnnstore {
namespace {

// Edges are counted by bins of targets, and bins are joined to buckets of about as many edges.
// A table of bins stays in the second-level cache, and is fine enough that hubs, and ids that
// crowd at one end, hardly ever make a bucket too large.
constexpr int max_bin_bits = 14;
// A bucket is sorted in the second-level cache: 2^15 edges are 0.9 MB of keys, ids and outputs.
constexpr int64_t goal_edges = 1 << 15;
// More streams of writes than that, and each of them waits.
constexpr int64_t max_goal_buckets = 1 << 11;
// Edges that are gathered for a bucket before they are written: a cache line of 16-bit targets.
constexpr int64_t line_edges = 32;
constexpr int64_t check_edges = 256;

template <class Id>
bool all_below(const Id *ids, int64_t num_ids, int64_t bound) {
    using Unsigned = std::make_unsigned_t<Id>;  // a negative id is a huge one
    Unsigned largest = 0;
    for (int64_t i = 0; i < num_ids; ++i)
        largest = std::max(largest, static_cast<Unsigned>(ids[i]));
    return static_cast<uint64_t>(largest) < static_cast<uint64_t>(bound);
}

template <class Id>
[[noreturn]] void throw_first_bad_id(const EdgeList<Id> &edges) {
    for (int64_t i = 0; i < edges.num_edges; ++i) {
        const auto refuse = [i](const char *end, Id id, int64_t bound) {
            throw std::out_of_range(std::string("the ") + end + " of edge " + std::to_string(i) +
                                    " is " + std::to_string(id) + ", outside [0, " +
                                    std::to_string(bound) + ")");
        };
        if (edges.sources[i] < 0 || edges.sources[i] >= edges.num_sources)
            refuse("source", edges.sources[i], edges.num_sources);
        if (edges.targets[i] < 0 || edges.targets[i] >= edges.num_targets)
            refuse("target", edges.targets[i], edges.num_targets);
    }
    throw std::out_of_range("an edge's id is out of range, but was changed meanwhile");
}

// Contiguous pieces of the list, of which each is taken by one thread.
struct Slices {
    int64_t num_edges, count;

    int64_t begin(int64_t slice) const { return num_edges / count * slice; }
    int64_t end(int64_t slice) const {
        return slice + 1 == count ? num_edges : begin(slice + 1);
    }
};

// Consecutive targets, and where their edges lie.
struct Bucket {
    int64_t first_target, last_target;  // one past
    int64_t begin, end;
};

struct Partition {
    int bin_shift;
    std::vector<uint16_t> bucket_of_bin;
    std::vector<Bucket> buckets;
    // Where each slice puts its edges of each bucket: [slice][bucket].
    std::vector<std::vector<int64_t>> places;
};

// Counts the edges of each bin, slice by slice. Checks all ids on the way.
template <class Id>
std::vector<std::vector<int64_t>> count_bins(const EdgeList<Id> &edges, const Slices &slices,
                                             int bin_shift, size_t num_bins, int num_threads) {
    std::vector<std::vector<int64_t>> counts(static_cast<size_t>(slices.count));
    std::atomic<bool> bad{false};
    run_workers(num_threads, slices.count, [&](TaskQueue &queue) {
        for (int64_t slice; queue.take(slice);) {
            std::vector<int64_t> mine(num_bins);
            const int64_t end = slices.end(slice);
            for (int64_t i = slices.begin(slice); i < end; i += check_edges) {
                const int64_t size = std::min(check_edges, end - i);
                if (!all_below(edges.targets + i, size, edges.num_targets) ||
                    !all_below(edges.sources + i, size, edges.num_sources)) {
                    bad = true;
                    return queue.close();
                }
                for (int64_t k = i; k < i + size; ++k)
                    ++mine[static_cast<size_t>(edges.targets[k] >> bin_shift)];
            }
            counts[static_cast<size_t>(slice)] = std::move(mine);
        }
    });
    if (bad) throw_first_bad_id(edges);
    return counts;
}

// Joins bins to buckets, and finds where slices write.
template <class Id>
Partition plan_partition(const EdgeList<Id> &edges, const Slices &slices, int64_t max_targets,
                         int num_threads) {
    Partition plan;
    const auto largest = static_cast<uint64_t>(std::max<int64_t>(1, edges.num_targets) - 1);
    plan.bin_shift = std::max(0, static_cast<int>(std::bit_width(largest)) - max_bin_bits);
    const auto num_bins = static_cast<size_t>(largest >> plan.bin_shift) + 1;
    const auto counts = count_bins(edges, slices, plan.bin_shift, num_bins, num_threads);
    const int64_t goal = std::max(goal_edges, edges.num_edges / max_goal_buckets);

    plan.bucket_of_bin.resize(num_bins);
    int64_t begin = 0;
    for (size_t bin = 0; bin < num_bins; ++bin) {
        const auto first = static_cast<int64_t>(bin) << plan.bin_shift;
        const int64_t last = std::min(edges.num_targets, first + (int64_t{1} << plan.bin_shift));
        int64_t size = 0;
        for (const auto &of_slice : counts) size += of_slice[bin];
        Bucket *open = plan.buckets.empty() ? nullptr : &plan.buckets.back();
        if (open == nullptr || open->end - open->begin + size > goal ||
            last - open->first_target > max_targets) {
            plan.buckets.push_back({first, first, begin, begin});
            open = &plan.buckets.back();
        }
        open->last_target = last;
        open->end = begin += size;
        plan.bucket_of_bin[bin] = static_cast<uint16_t>(plan.buckets.size() - 1);
    }
    plan.places.assign(counts.size(), std::vector<int64_t>(plan.buckets.size()));
    int64_t place = 0;
    for (size_t bin = 0; bin < num_bins;) {
        const uint16_t bucket = plan.bucket_of_bin[bin];
        size_t end = bin;
        while (end < num_bins && plan.bucket_of_bin[end] == bucket) ++end;
        for (size_t slice = 0; slice < counts.size(); ++slice) {
            plan.places[slice][bucket] = place;
            for (size_t b = bin; b < end; ++b) place += counts[slice][b];
        }
        bin = end;
    }
    return plan;
}

// Writes edges to their buckets, in the order of the list. Lines of each bucket are gathered in
// the cache and then written past it: a store straight into one of thousands of streams would
// miss the TLB and read the line that it is about to overwrite.
template <class Id, class EdgeId, class Low>
class Scatter {
public:
    Scatter(const EdgeList<Id> &edges, const Partition &plan, Id *indices, EdgeId *edge_id,
            Low *lows)
        : edges_(edges),
          plan_(plan),
          indices_(indices),
          edge_id_(edge_id),
          lows_(lows),
          stream_(are_aligned(indices, edge_id, lows) ? stream_copy() : nullptr),
          lines_(plan.buckets.size()) {}

    void operator()(int64_t begin, int64_t end, const std::vector<int64_t> &places) {
        std::vector<int64_t> next = places;
        for (int64_t i = begin; i < end; ++i) {
            const Id target = edges_.targets[i];
            const auto bin = static_cast<size_t>(target >> plan_.bin_shift);
            const size_t bucket = plan_.bucket_of_bin[bin];
            const int64_t place = next[bucket]++;
            const auto slot = static_cast<size_t>(place % line_edges);
            Lines &lines = lines_[bucket];
            lines.sources[slot] = edges_.sources[i];
            lines.ids[slot] = static_cast<EdgeId>(i);
            lines.lows[slot] = static_cast<Low>(target);
            if (slot + 1 == line_edges) {
                if (place - places[bucket] + 1 >= line_edges)
                    flush(lines, place + 1 - line_edges);
                else
                    flush_part(lines, places[bucket], place + 1);
            }
        }
        for (size_t bucket = 0; bucket < lines_.size(); ++bucket) {
            const int64_t last = next[bucket];
            flush_part(lines_[bucket], std::max(places[bucket], last - last % line_edges), last);
        }
        if (stream_) stream_fence();
    }

private:
    struct alignas(stream_line_bytes) Lines {
        Id sources[line_edges];
        EdgeId ids[line_edges];
        Low lows[line_edges];
    };
    static_assert(line_edges * sizeof(Low) % stream_line_bytes == 0);

    static bool are_aligned(const void *a, const void *b, const void *c) {
        const auto bits = reinterpret_cast<uintptr_t>(a) | reinterpret_cast<uintptr_t>(b) |
                          reinterpret_cast<uintptr_t>(c);
        return bits % stream_line_bytes == 0;
    }

    void flush(const Lines &lines, int64_t place) {
        copy(lines.sources, indices_ + place);
        if (edge_id_) copy(lines.ids, edge_id_ + place);
        copy(lines.lows, lows_ + place);
    }
    template <class T>
    void copy(const T *in, T *out) {
        if (stream_)
            stream_(reinterpret_cast<uint8_t *>(out), reinterpret_cast<const uint8_t *>(in),
                    line_edges * sizeof(T));
        else
            std::copy_n(in, line_edges, out);
    }
    // Places that lie in one line.
    void flush_part(const Lines &lines, int64_t begin, int64_t end) {
        const int64_t slot = begin % line_edges, size = end - begin;
        std::copy_n(lines.sources + slot, size, indices_ + begin);
        if (edge_id_) std::copy_n(lines.ids + slot, size, edge_id_ + begin);
        std::copy_n(lines.lows + slot, size, lows_ + begin);
    }

    const EdgeList<Id> &edges_;
    const Partition &plan_;
    Id *const indices_;
    EdgeId *const edge_id_;
    Low *const lows_;
    const StreamCopy stream_;
    std::vector<Lines> lines_;
};

// Brings the edges of a bucket to their columns by swapping, which needs no second copy of
// them but loses their order. Returns where columns begin, and where the last one ends.
template <class Id, class EdgeId, class Low>
std::vector<int64_t> swap_to_columns(const Bucket &bucket, Id *indices, EdgeId *edge_id,
                                     Low *lows) {
    const auto width = static_cast<size_t>(bucket.last_target - bucket.first_target);
    std::vector<int64_t> starts(width + 1);
    const auto column_of = [&](int64_t i) {
        return static_cast<Low>(lows[i] - static_cast<Low>(bucket.first_target));
    };
    for (int64_t i = bucket.begin; i < bucket.end; ++i) ++starts[column_of(i)];
    int64_t sum = bucket.begin;
    for (int64_t &start : starts) sum += std::exchange(start, sum);
    std::vector<int64_t> next = starts;
    for (size_t column = 0; column < width; ++column)
        while (next[column] < starts[column + 1]) {
            const int64_t from = next[column];
            const int64_t to = next[column_of(from)]++;
            if (to == from) continue;
            std::swap(indices[from], indices[to]);
            if (edge_id) std::swap(edge_id[from], edge_id[to]);
            std::swap(lows[from], lows[to]);
        }
    return starts;
}

template <class Id, class EdgeId, class Low>
void build(const EdgeList<Id> &edges, int64_t *indptr, Id *indices, EdgeId *edge_id,
           int num_threads) {
    const int64_t max_targets =
        std::is_same_v<Low, uint16_t> ? 1 << 16 : int64_t{std::numeric_limits<uint32_t>::max()};
    // A few for each thread, lest one that is held up holds up all; long enough that lines
    // which are not full at their ends do not matter, and not so many that their counts do.
    const Slices slices{edges.num_edges, std::clamp<int64_t>(edges.num_edges / (1 << 18), 1,
                                                             std::min(4 * num_threads, 128))};
    Partition plan = plan_partition(edges, slices, max_targets, num_threads);
    const PooledArray<Low> lows(edges.num_edges);
    run_workers(num_threads, slices.count, [&](TaskQueue &queue) {
        Scatter scatter(edges, plan, indices, edge_id, lows.data());
        for (int64_t slice; queue.take(slice);) {
            const auto &places = plan.places[static_cast<size_t>(slice)];
            scatter(slices.begin(slice), slices.end(slice), places);
        }
    });

    // The largest first, so that threads end at about the same time.
    std::vector<Bucket> buckets = plan.buckets;
    std::stable_sort(buckets.begin(), buckets.end(), [](const Bucket &a, const Bucket &b) {
        return a.end - a.begin > b.end - b.begin;
    });
    const int64_t most = csc_group_edges(edges.num_edges);
    run_workers(num_threads, static_cast<int64_t>(buckets.size()), [&](TaskQueue &queue) {
        ColumnSorter<Id, EdgeId, Low> sort(edges.num_sources, indptr, indices, edge_id,
                                           lows.data());
        for (int64_t task; queue.take(task);) {
            const Bucket &bucket = buckets[static_cast<size_t>(task)];
            if (bucket.end - bucket.begin <= most) {
                sort({bucket.begin, bucket.end, bucket.first_target, bucket.last_target}, true);
                continue;
            }
            const auto starts = swap_to_columns(bucket, indices, edge_id, lows.data());
            for (size_t first = 0; first + 1 < starts.size();) {
                size_t last = first + 1;
                while (last + 1 < starts.size() && starts[last + 1] - starts[first] <= most) ++last;
                sort({starts[first], starts[last],
                      bucket.first_target + static_cast<int64_t>(first),
                      bucket.first_target + static_cast<int64_t>(last)},
                     false);
                first = last;
            }
        }
    });
}

}  // namespace

template <class Id, class EdgeId>
void csc_from_coo(const EdgeList<Id> &edges, int64_t *indptr, Id *indices, EdgeId *edge_id,
                  int num_threads) {
    check_num_threads(num_threads);
    indptr[0] = 0;
    if (edges.num_edges == 0) return std::fill(indptr + 1, indptr + edges.num_targets + 1, 0);
    if (edges.num_targets <= int64_t{1} << 27)
        build<Id, EdgeId, uint16_t>(edges, indptr, indices, edge_id, num_threads);
    else
        build<Id, EdgeId, uint32_t>(edges, indptr, indices, edge_id, num_threads);
}

template void csc_from_coo(const EdgeList<int32_t> &, int64_t *, int32_t *, int32_t *, int);
template void csc_from_coo(const EdgeList<int32_t> &, int64_t *, int32_t *, int64_t *, int);
template void csc_from_coo(const EdgeList<int64_t> &, int64_t *, int64_t *, int32_t *, int);
template void csc_from_coo(const EdgeList<int64_t> &, int64_t *, int64_t *, int64_t *, int);

}  // namespace gnnstore
