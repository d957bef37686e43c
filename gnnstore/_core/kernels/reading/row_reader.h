// Rows of a table on disk, read and copied to their places in a batch.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "kernels/files/open_file.h"
#include "kernels/reading/read_engine.h"
#include "kernels/rows/cached_copy.h"
#include "kernels/rows/rows.h"

namespace gnnstore {

// Counts of the reads of a call. Plain sums: counts of several calls add up.
struct ReadCounts {
    int64_t reads = 0;         // as submitted: continuing a short one is not another
    int64_t bytes_read = 0;    // of these reads
    int64_t bytes_useful = 0;  // bytes of distinct rows (or ranges) that were asked for
    int64_t rows_read = 0;     // distinct rows that were read
    int64_t rows_cached = 0;   // ids that were copied from the cache
    int64_t depth_sum = 0;     // reads in flight, summed over `waits`: depth_sum / waits is
    int64_t waits = 0;         //   the mean queue depth
    int64_t nanoseconds_waiting = 0;

    ReadCounts &operator+=(const ReadCounts &other) {
        reads += other.reads;
        bytes_read += other.bytes_read;
        bytes_useful += other.bytes_useful;
        rows_read += other.rows_read;
        rows_cached += other.rows_cached;
        depth_sum += other.depth_sum;
        waits += other.waits;
        nanoseconds_waiting += other.nanoseconds_waiting;
        return *this;
    }
    bool operator==(const ReadCounts &) const = default;
};

// The files of an array: bodies one behind the other, as in read_pages.
class FileSet {
public:
    FileSet(const std::vector<std::string> &paths, const std::vector<int64_t> &body_bytes,
            bool want_direct);
    FileSet(const FileSet &) = delete;
    FileSet &operator=(const FileSet &) = delete;

    size_t size() const { return files_.size(); }
    const OpenFile &file(size_t i) const { return *files_[i]; }
    // Offset of a file's body among all bodies; begin(size()) is their total.
    int64_t begin(size_t i) const { return begins_[i]; }
    int64_t alignment() const { return alignment_; }  // the largest of all files
    bool is_direct() const { return is_direct_; }     // all of them

private:
    std::vector<std::unique_ptr<OpenFile>> files_;
    std::vector<int64_t> begins_;
    int64_t alignment_ = 512;
    bool is_direct_ = true;
};

// A range of a file's bytes and where it goes.
struct ReadRange {
    int64_t file = 0;
    int64_t offset = 0;
    int64_t num_bytes = 0;
    int64_t out_offset = 0;
};

struct ReaderOptions {
    EngineKind kind = EngineKind::io_uring;
    int queue_depth = 128;
    int num_threads = 32;
    int64_t max_read_bytes = 64 << 10;  // a multiple of 4096; merged reads are split to it
};

// Engines and their staging memory, lent to one call at a time: safe to use from many
// threads, and after a fork, where the child makes engines of its own.
class Reader {
public:
    explicit Reader(const ReaderOptions &options);
    ~Reader();
    Reader(const Reader &) = delete;
    Reader &operator=(const Reader &) = delete;

    // Copies row ids[k] to out + k * row_bytes, from the cache or from disk; one that has a slot
    // of a cache without a table is left out. Nothing is written when an id or slot is out of
    // range. Rows less than gap_bytes apart are fetched by one read.
    template <class Id>
    ReadCounts gather(const FileSet &files, const RowLayout &layout, const Id *ids,
                      int64_t num_ids, const CachedRows &cache, int64_t gap_bytes, uint8_t *out,
                      int64_t out_bytes);

    // Reads ranges, in pieces of at most max_read_bytes, straight to `out` where offset,
    // length and place are aligned, else through staging memory.
    ReadCounts read(const FileSet &files, const std::vector<ReadRange> &ranges, uint8_t *out,
                    int64_t out_bytes);

    // Reads a range, from an aligned offset on, in pieces of at most max_read_bytes; `take` gets
    // each with its place in the range when it has arrived, in no particular order.
    using TakePiece = std::function<void(int64_t place, const uint8_t *bytes, int64_t num_bytes)>;
    ReadCounts stream(const FileSet &files, int64_t file, int64_t offset, int64_t num_bytes,
                      const TakePiece &take);

    // Bytes of staging memory of one engine: a budget counts them once per calling thread.
    int64_t staging_bytes() const;
    // How an engine works here; makes one if there is none. Throws what that throws.
    std::string describe();

private:
    struct Lane;
    struct Lanes;
    class Lease;
    const ReaderOptions options_;
    std::atomic<Lanes *> lanes_;
};

}  // namespace gnnstore
