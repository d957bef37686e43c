#include "kernels/building/csc_build.h"

#include <algorithm>
#include <atomic>
#include <limits>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "kernels/base/errors.h"
#include "kernels/base/parallel.h"
#include "kernels/base/pooled_array.h"
#include "kernels/base/stream_copy.h"
#include "kernels/building/column_buckets.h"

namespace gnnstore {
namespace {

// 2^15 edges are 0.9 MB of keys, ids and outputs.
constexpr BucketGoal goal{1 << 15, 1 << 11};
// Edges that are gathered for a bucket before they are written: a cache line of 16-bit targets.
constexpr int64_t line_edges = 32;

template <class Id>
[[noreturn]] void throw_first_bad_id(const EdgeList<Id> &edges) {
    for (int64_t i = 0; i < edges.num_edges; ++i) {
        const auto refuse = [i](const char *end, Id id, int64_t bound) {
            throw out_of_range("the ", end, " of edge ", i, " is ", id, ", outside [0, ", bound,
                               ")");
        };
        if (edges.sources[i] < 0 || edges.sources[i] >= edges.num_sources)
            refuse("source", edges.sources[i], edges.num_sources);
        if (edges.targets[i] < 0 || edges.targets[i] >= edges.num_targets)
            refuse("target", edges.targets[i], edges.num_targets);
    }
    throw out_of_range("an edge's id is out of range, but was changed meanwhile");
}

// Contiguous pieces of the list, of which each is taken by one thread.
struct Slices {
    int64_t num_edges, count;

    int64_t begin(int64_t slice) const { return num_edges / count * slice; }
    int64_t end(int64_t slice) const {
        return slice + 1 == count ? num_edges : begin(slice + 1);
    }
};

struct Partition {
    TargetBins bins;
    BucketPlan plan;
    // Where each slice puts its edges of each bucket: [slice][bucket].
    std::vector<std::vector<int64_t>> places;
};

// Counts the edges of each bin, slice by slice. Checks all ids on the way.
template <class Id>
std::vector<std::vector<int64_t>> count_bins(const EdgeList<Id> &edges, const Slices &slices,
                                             const TargetBins &bins, int num_threads) {
    std::vector<std::vector<int64_t>> counts(static_cast<size_t>(slices.count));
    std::atomic<bool> bad{false};
    run_workers(num_threads, slices.count, [&](TaskQueue &queue) {
        for (int64_t slice; queue.take(slice);) {
            std::vector<int64_t> mine(bins.count);
            const int64_t end = slices.end(slice);
            for (int64_t i = slices.begin(slice); i < end; i += check_edges) {
                const int64_t size = std::min(check_edges, end - i);
                if (!all_below(edges.targets + i, size, edges.num_targets) ||
                    !all_below(edges.sources + i, size, edges.num_sources)) {
                    bad = true;
                    return queue.close();
                }
                for (int64_t k = i; k < i + size; ++k)
                    ++mine[bins.of(edges.targets[k])];
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
    const TargetBins bins(edges.num_targets);
    const auto counts = count_bins(edges, slices, bins, num_threads);
    std::vector<int64_t> totals(bins.count);
    for (const auto &of_slice : counts)
        for (size_t bin = 0; bin < bins.count; ++bin) totals[bin] += of_slice[bin];
    Partition partition{bins, plan_buckets(bins, totals, edges.num_targets, max_targets, goal), {}};

    const auto &bucket_of_bin = partition.plan.bucket_of_bin;
    partition.places.assign(counts.size(),
                            std::vector<int64_t>(partition.plan.buckets.size()));
    int64_t place = 0;
    for (size_t bin = 0; bin < bins.count;) {
        const uint16_t bucket = bucket_of_bin[bin];
        size_t end = bin;
        while (end < bins.count && bucket_of_bin[end] == bucket) ++end;
        for (size_t slice = 0; slice < counts.size(); ++slice) {
            partition.places[slice][bucket] = place;
            for (size_t b = bin; b < end; ++b) place += counts[slice][b];
        }
        bin = end;
    }
    return partition;
}

// Writes edges to their buckets, in the order of the list. Lines of each bucket are gathered in
// the cache and then written past it: a store straight into one of thousands of streams would
// miss the TLB and read the line that it is about to overwrite.
template <class Id, class EdgeId, class Low>
class Scatter {
public:
    Scatter(const EdgeList<Id> &edges, const Partition &partition, Id *indices, EdgeId *edge_id,
            Low *lows)
        : edges_(edges),
          partition_(partition),
          indices_(indices),
          edge_id_(edge_id),
          lows_(lows),
          stream_(are_aligned(indices, edge_id, lows) ? stream_copy() : nullptr),
          lines_(partition.plan.buckets.size()) {}

    void operator()(int64_t begin, int64_t end, const std::vector<int64_t> &places) {
        std::vector<int64_t> next = places;
        for (int64_t i = begin; i < end; ++i) {
            const Id target = edges_.targets[i];
            const size_t bucket = partition_.plan.bucket_of_bin[partition_.bins.of(target)];
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
    const Partition &partition_;
    Id *const indices_;
    EdgeId *const edge_id_;
    Low *const lows_;
    const StreamCopy stream_;
    std::vector<Lines> lines_;
};

template <class Id, class EdgeId, class Low>
void build(const EdgeList<Id> &edges, int64_t *indptr, Id *indices, EdgeId *edge_id,
           int num_threads) {
    const int64_t max_targets =
        std::is_same_v<Low, uint16_t> ? 1 << 16 : int64_t{std::numeric_limits<uint32_t>::max()};
    // A few for each thread, lest one that is held up holds up all; long enough that lines
    // which are not full at their ends do not matter, and not so many that their counts do.
    const Slices slices{edges.num_edges, std::clamp<int64_t>(edges.num_edges / (1 << 18), 1,
                                                             std::min(4 * num_threads, 128))};
    const Partition partition = plan_partition(edges, slices, max_targets, num_threads);
    const PooledArray<Low> lows(edges.num_edges);
    run_workers(num_threads, slices.count, [&](TaskQueue &queue) {
        Scatter scatter(edges, partition, indices, edge_id, lows.data());
        for (int64_t slice; queue.take(slice);) {
            const auto &places = partition.places[static_cast<size_t>(slice)];
            scatter(slices.begin(slice), slices.end(slice), places);
        }
    });

    // The largest first, so that threads end at about the same time.
    std::vector<Bucket> buckets = partition.plan.buckets;
    std::stable_sort(buckets.begin(), buckets.end(), [](const Bucket &a, const Bucket &b) {
        return a.num_edges() > b.num_edges();
    });
    const int64_t most = csc_group_edges(edges.num_edges);
    run_workers(num_threads, static_cast<int64_t>(buckets.size()), [&](TaskQueue &queue) {
        ColumnSorter<Id, EdgeId, Low> sort(edges.num_sources, indptr, indices, edge_id,
                                           lows.data());
        for (int64_t task; queue.take(task);) {
            const Bucket &bucket = buckets[static_cast<size_t>(task)];
            sort_bucket(sort, bucket, indices, edge_id, lows.data(), most);
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
