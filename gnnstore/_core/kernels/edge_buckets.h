// A graph's edges dealt to buckets of neighbouring targets, block by block, so that each block can
// be freed behind it; then sorted into columns a piece at a time, while others are written.
#pragma once

#include <cstdint>
#include <mutex>
#include <utility>
#include <vector>

#include "kernels/column_buckets.h"
#include "kernels/pooled_array.h"
#include "kernels/stream_copy.h"

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

    // First of all, sample every block of edges: buckets are to be about as large.
    void sample(const int32_t *sources, const int32_t *targets, int64_t num_edges);

    // Then decide on the buckets for so many edges; returns about how many the largest one gets.
    int64_t plan(int64_t num_edges);

    // Then add the blocks, whose positions go on from one to the next. An id out of range throws
    // std::out_of_range.
    void add(const int32_t *sources, const int32_t *targets, int64_t num_edges);

    // Between two blocks, gives memory that must outlive this: that of a block that was added. It is
    // mapped and cleared already.
    void give(void *memory, int64_t num_bytes);

    // Then say that there are no more.
    void finish();

    int64_t num_pieces() const { return static_cast<int64_t>(pieces_.size()); }
    const Piece &piece(int64_t number) const { return pieces_[static_cast<size_t>(number)]; }

    // Then sort any piece, any number of times, from any thread: its columns by (source,
    // position). Fills indptr [columns + 1], of the whole graph, and sources and, unless it is
    // null, ids [edges].
    void sort(int64_t piece, int64_t *indptr, int32_t *sources, int32_t *ids) const;

private:
    // An edge takes 8 bytes: its target, less the first of the bucket; its source; its position,
    // less the first of what its thread dealt at a time. The source lies between, for keys that
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

    // What one thread deals: of each bucket a chain of chunks, and its latest line.
    struct Span {
        std::vector<Line> latest;
        std::vector<uint32_t> sizes;
        std::vector<std::vector<uint64_t *>> chunks;
        std::vector<PooledBuffer> slabs;
        uint64_t *next = nullptr;
        int64_t left = 0;  // edges that the latest slab has room for
    };

    // Edges of consecutive positions that a thread dealt at a time, the threads side by side.
    struct Round {
        std::vector<int64_t> first_positions;      // [span]
        std::vector<std::vector<uint32_t>> sizes;  // [span][bucket], by its end
    };

    // Edges of a bucket that lie together, and the position that their places count from.
    struct Run {
        const uint64_t *edges;
        int64_t size, first_position;
    };

    // The scratch memory of a thread that sorts.
    struct Scratches;

    void deal(Span &span, const int32_t *sources, const int32_t *targets, int64_t num_edges);
    uint64_t *new_chunk(Span &span);
    void find_runs(size_t bucket, std::vector<Run> &runs) const;
    static void sort_small(const Bucket &bucket, int64_t *indptr, int32_t *sources, int32_t *ids,
                           Scratches &scratches);
    void sort_large(const Bucket &bucket, int64_t *indptr, int32_t *sources, int32_t *ids,
                    const std::vector<Run> &runs) const;

    const int64_t num_nodes_;
    const int num_threads_;
    const TargetBins bins_;
    const StreamCopy stream_;
    std::mutex mutex_;
    std::vector<int64_t> counts_;
    int64_t num_planned_ = -1, num_edges_ = 0;
    bool is_finished_ = false;
    BucketPlan plan_;
    std::vector<Piece> pieces_;
    int64_t chunk_edges_ = line_edges;
    std::mutex given_mutex_;
    std::vector<std::pair<uint64_t *, int64_t>> given_;  // and for how many edges it has room
    std::vector<Span> spans_;
    std::vector<Round> rounds_;
};

}  // namespace gnnstore
