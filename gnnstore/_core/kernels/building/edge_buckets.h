// A graph's edges dealt to buckets of neighbouring targets, block by block as they are read; then
// sorted into columns a piece at a time, while others are written.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "kernels/base/pooled_array.h"
#include "kernels/base/stream_copy.h"
#include "kernels/building/column_buckets.h"

namespace gnnstore {

// Ids and positions have 4 bytes.
//
// Takes 8 bytes per edge, and what open chunks have room for: at most an eighth as much, and some
// megabytes. Once a block was added, its memory serves for the edges of the next.
class EdgeBuckets {
public:
    // Columns that are sorted together.
    struct Piece {
        int64_t first_bucket, last_bucket;  // one past
        int64_t first_target, last_target;
        int64_t begin, end;
    };

    EdgeBuckets(int64_t num_nodes, int num_threads);

    // First of all, look at targets from all over the edges: buckets are to be about as large.
    void sample(const int32_t *targets, int64_t num_targets);

    // Then decide on the buckets for so many edges; returns about how many the largest one gets.
    int64_t plan(int64_t num_edges);

    // Then add the blocks, from any threads, each with the position of its first edge. Beyond
    // `num_threads`, a caller waits for another one. An id out of range throws std::out_of_range.
    void add(const int32_t *sources, const int32_t *targets, int64_t num_edges,
             int64_t first_position);

    // Gives memory that must outlive this, as a block's that was added: it is mapped and cleared
    // already.
    void give(void *memory, int64_t num_bytes);

    // Then say that there are no more; returns how many the largest bucket got.
    int64_t finish();

    int64_t num_pieces() const { return static_cast<int64_t>(pieces_.size()); }
    const Piece &piece(int64_t number) const { return pieces_[static_cast<size_t>(number)]; }

    // Then sort any piece, any number of times, from any thread: its columns by (source,
    // position). Fills indptr [columns + 1], of the whole graph, and sources and, unless it is
    // null, ids [edges].
    void sort(int64_t piece, int64_t *indptr, int32_t *sources, int32_t *ids) const;

private:
    // An edge takes 8 bytes: its target, less the first of the bucket; its source; its position,
    // less the first of what was dealt at a time. The source lies between, for keys that
    // are sorted by it.
    static constexpr int low_bits = 16, source_bits = 27, place_bits = 21;
    static_assert(low_bits + source_bits + place_bits == 64);
    static constexpr int64_t max_nodes = int64_t{1} << source_bits;
    static constexpr uint64_t place_mask = (uint64_t{1} << place_bits) - 1;
    static constexpr uint64_t source_mask = (uint64_t{1} << source_bits) - 1;

    static uint64_t low_of(uint64_t edge) { return edge >> (source_bits + place_bits); }
    static uint64_t source_of(uint64_t edge) { return edge >> place_bits & source_mask; }
    static uint64_t place_of(uint64_t edge) { return edge & place_mask; }

    // Edges that are gathered for a bucket before they are written: two cache lines.
    static constexpr int64_t line_edges = 16;
    struct alignas(stream_line_bytes) Line {
        uint64_t edges[line_edges];
    };

    // The edges of a bucket that one thread dealt, in chunks: all that is looked at for each edge,
    // in as little of the cache as possible.
    struct Chain {
        uint64_t *next = nullptr;  // where the next line goes
        uint32_t size = 0;
        int32_t first_target = 0;
    };

    using Sizes = std::vector<uint32_t>;  // [bucket]

    // The edges dealt by one thread at a time: of each bucket a chain, and its latest line.
    struct Span {
        std::vector<Line> latest;
        std::vector<Chain> chains;
        std::vector<std::vector<uint64_t *>> chunks;
        std::shared_ptr<const Sizes> sizes;  // of the chains, when the latest round was dealt
        std::vector<PooledBuffer> slabs;
        uint64_t *next = nullptr;
        int64_t left = 0;  // edges that the latest slab has room for
    };

    // Edges of consecutive positions that lie in the chains of a span, from here to there.
    struct Round {
        int64_t first_position;
        const Span *span;
        std::shared_ptr<const Sizes> begins, ends;
    };

    // Edges of a bucket that lie together, and the position that their places count from.
    struct Run {
        const uint64_t *edges;
        int64_t size, first_position;
    };

    // The scratch memory of a thread that sorts.
    struct Scratches;

    void check_below(const int32_t *ids, int64_t num_ids) const;
    Span &take_span();
    void deal(Span &span, const int32_t *sources, const int32_t *targets, int64_t num_edges);
    uint64_t *new_chunk(Span &span);
    void find_runs(size_t bucket, std::vector<Run> &runs) const;
    void sort_small(const Bucket &bucket, int64_t *indptr, int32_t *sources, int32_t *ids,
                    Scratches &scratches) const;
    void sort_large(const Bucket &bucket, int64_t *indptr, int32_t *sources, int32_t *ids,
                    const std::vector<Run> &runs) const;

    const int64_t num_nodes_;
    const int num_threads_;
    const TargetBins bins_;
    const StreamCopy stream_;
    std::mutex mutex_;
    std::vector<int64_t> counts_;
    int64_t num_planned_ = -1, num_taken_ = 0, num_dealt_ = 0;
    bool is_finished_ = false;
    BucketPlan plan_;
    std::vector<Piece> pieces_;
    int64_t chunk_edges_ = line_edges;
    std::mutex given_mutex_;
    std::vector<std::pair<uint64_t *, int64_t>> given_;  // and for how many edges it has room
    std::vector<Span> spans_;
    std::vector<Span *> idle_spans_;
    std::condition_variable has_idle_span_;
    std::vector<Round> rounds_;
};

}  // namespace gnnstore
