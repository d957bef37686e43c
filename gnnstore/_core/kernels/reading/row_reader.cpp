#include "kernels/reading/row_reader.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <exception>
#include <utility>

#include "kernels/base/check_ids.h"
#include "kernels/base/errors.h"
#include "kernels/base/pooled_array.h"
#include "kernels/reading/read_plan.h"

namespace gnnstore {
namespace {

// Staging memory begins on a page, and so do the places of reads in it.
constexpr int64_t staging_alignment = 4096;
// Buffers of the pool from this size on are aligned to 2 MiB.
constexpr int64_t min_staging_bytes = 1 << 20;
// A range that goes straight to its place is read in pieces of this size, which reach a
// disk's full bandwidth.
constexpr int64_t straight_read_bytes = 1 << 20;
// Cached ids between two looks at finished reads: 0.1 ms of copying rows of 512 bytes, in
// which a disk finishes 10 of 128 reads in flight.
constexpr int64_t cached_ids_per_look = 1024;
// A wait ends when an eighth of the queue is finished: an eighth of the system calls, and
// the disk still has seven eighths to do.
constexpr int waits_per_queue = 8;

}  // namespace

FileSet::FileSet(const std::vector<std::string> &paths, const std::vector<int64_t> &body_bytes,
                 bool want_direct) {
    check_bodies(paths, body_bytes);
    begins_.push_back(0);
    for (size_t i = 0; i < paths.size(); ++i) {
        begins_.push_back(checked_add(begins_.back(), body_bytes[i], "the sum of body_bytes"));
        files_.push_back(std::make_unique<OpenFile>(paths[i], body_bytes[i], want_direct));
        alignment_ = std::max(alignment_, files_.back()->offset_alignment());
        is_direct_ = is_direct_ && files_.back()->is_direct();
    }
}

// An engine with the memory that its reads go to. The engine goes first.
struct Reader::Lane {
    explicit Lane(const ReaderOptions &options)
        : staging(std::max(min_staging_bytes, options.queue_depth * options.max_read_bytes)) {
        engine = make_engine({.kind = options.kind,
                              .queue_depth = options.queue_depth,
                              .num_threads = options.num_threads,
                              .staging = {staging.data(),
                                          options.queue_depth * options.max_read_bytes}});
        const auto depth = static_cast<size_t>(options.queue_depth);
        tags.resize(depth);
        places.reserve(depth);
        for (size_t place = depth; place > 0; --place) places.push_back(place - 1);
    }

    PooledArray<uint8_t> staging;
    std::unique_ptr<ReadEngine> engine;
    std::vector<uint64_t> places;  // the free ones
    std::vector<uint64_t> tags;    // of finished reads
    std::vector<Read> reads;       // to be submitted
};

struct Reader::Lanes {
    const pid_t process = ::getpid();
    std::mutex mutex;
    std::vector<std::unique_ptr<Lane>> idle;
};

// Takes a lane for the length of a call, and leaves nothing in flight behind.
class Reader::Lease {
public:
    explicit Lease(Reader &reader) {
        Lanes *lanes = reader.lanes_.load(std::memory_order_acquire);
        if (lanes->process != ::getpid()) {
            // After a fork. Rings and threads belong to the parent, and a mutex may have been
            // locked by a thread that is not here: they are left alone, and new ones made.
            auto fresh = std::make_unique<Lanes>();
            if (reader.lanes_.compare_exchange_strong(lanes, fresh.get())) lanes = fresh.release();
        }
        lanes_ = lanes;
        {
            const std::lock_guard lock(lanes_->mutex);
            if (!lanes_->idle.empty()) {
                lane_ = std::move(lanes_->idle.back());
                lanes_->idle.pop_back();
            }
        }
        if (!lane_) lane_ = std::make_unique<Lane>(reader.options_);
    }
    ~Lease() {
        if (lane_->engine->num_in_flight() == 0 &&
            lane_->places.size() == lane_->tags.size()) {
            const std::lock_guard lock(lanes_->mutex);
            lanes_->idle.push_back(std::move(lane_));
        } else {
            lane_->engine->drain();  // an error: wait for the rest, and start anew next time
        }
    }
    Lease(const Lease &) = delete;
    Lease &operator=(const Lease &) = delete;

    Lane &operator*() const { return *lane_; }

private:
    Lanes *lanes_;
    std::unique_ptr<Lane> lane_;
};

namespace {

// Keeps an engine busy: `next` gives the read of a place, `done` takes what came. Between reads,
// while there is other work, `meanwhile` does a bit of it and returns whether there is more.
template <class Lane, class Next, class Done, class Meanwhile>
void run_reads(Lane &lane, ReadCounts &counts, const Next &next, const Done &done,
               bool has_work, const Meanwhile &meanwhile) {
    ReadEngine &engine = *lane.engine;
    bool has_reads = true;
    for (;;) {
        lane.reads.clear();
        while (has_reads && !lane.places.empty()) {
            Read read;
            read.tag = lane.places.back();
            has_reads = next(read);
            if (!has_reads) break;
            lane.places.pop_back();
            lane.reads.push_back(read);
            ++counts.reads;
            counts.bytes_read += read.length;
        }
        if (!lane.reads.empty()) engine.submit(lane.reads);
        const int in_flight = engine.num_in_flight();
        if (in_flight == 0 && !has_work && !has_reads) return;
        if (in_flight == 0) {
            has_work = meanwhile();
            continue;
        }
        int num_finished;
        if (has_work) {
            // Starts what was submitted, before the other work.
            num_finished = engine.finished(lane.tags.data(), 0);
            has_work = meanwhile();
        } else {
            counts.depth_sum += in_flight;
            ++counts.waits;
            const auto start = std::chrono::steady_clock::now();
            num_finished = engine.finished(
                lane.tags.data(), std::max(1, std::min(in_flight, engine.queue_depth()) /
                                                  waits_per_queue));
            counts.nanoseconds_waiting +=
                std::chrono::nanoseconds(std::chrono::steady_clock::now() - start).count();
        }
        for (int i = 0; i < num_finished; ++i) {
            const uint64_t tag = lane.tags[static_cast<size_t>(i)];
            done(tag);
            lane.places.push_back(tag);
        }
    }
}

void check_gather(const FileSet &files, const RowLayout &layout, int64_t num_ids,
                  int64_t gap_bytes, int64_t out_bytes) {
    layout.check();
    require(gap_bytes >= 0, "gap_bytes must not be negative, got ", gap_bytes);
    const int64_t total = files.begin(files.size());
    require(total >= layout.end_offset(), "the bodies add up to ", total, " bytes, but the last "
            "row ends at byte ", layout.end_offset());
    for (size_t i = 0; i < files.size(); ++i)
        if (const int64_t before = files.begin(i) - layout.begin_bytes;
            before > 0 && before % layout.page_stride_bytes != 0 &&
            files.begin(i) < layout.end_offset())
            throw invalid("the bodies before ", files.file(i).path(), " hold ", before, " bytes of "
                          "the table, not whole pages of ", layout.page_stride_bytes);
    layout.check_output(num_ids, out_bytes);
}

}  // namespace

Reader::Reader(const ReaderOptions &options) : options_(options), lanes_(nullptr) {
    require(options.queue_depth >= 1 && options.queue_depth <= 4096, "queue_depth must be between "
            "1 and 4096, got ", options.queue_depth);
    require(options.num_threads >= 1 && options.num_threads <= 1024, "num_threads must be between "
            "1 and 1024, got ", options.num_threads);
    require(options.max_read_bytes >= staging_alignment &&
                options.max_read_bytes % staging_alignment == 0 &&
                options.max_read_bytes <= int64_t{1} << 26,
            "max_read_bytes must be a multiple of 4096, at most 64 MiB, got " +
                std::to_string(options.max_read_bytes));
    lanes_ = new Lanes;
}

Reader::~Reader() {
    Lanes *lanes = lanes_;
    if (lanes->process == ::getpid()) delete lanes;
}

int64_t Reader::staging_bytes() const {
    return std::max(min_staging_bytes, options_.queue_depth * options_.max_read_bytes);
}

std::string Reader::describe() {
    const Lease lease(*this);
    return (*lease).engine->describe();
}

template <class Id>
ReadCounts Reader::gather(const FileSet &files, const RowLayout &layout, const Id *ids,
                          int64_t num_ids, const CachedRows &cache, int64_t gap_bytes,
                          uint8_t *out, int64_t out_bytes) {
    check_gather(files, layout, num_ids, gap_bytes, out_bytes);
    check_ids(ids, num_ids, layout.num_rows);
    check_slots(cache, num_ids);
    if (options_.max_read_bytes % files.alignment() != 0)
        throw invalid("reads of ", files.file(0).path(), " must be multiples of ",
                      files.alignment(), " bytes; max_read_bytes is ", options_.max_read_bytes);
    ReadCounts counts;
    if (num_ids == 0) return counts;
    const int64_t row_bytes = layout.row_bytes;
    const WantedRows rows(ids, cache.slots, num_ids, layout.num_rows);
    ReadPlan plan(files, layout, rows, gap_bytes, options_.max_read_bytes);
    const RowCopy copy_row(row_bytes, out, out_bytes);
    CachedCopy cached(cache, num_ids, row_bytes, out, copy_row);
    if (rows.size() == 0) {  // no engine is needed
        cached.advance(num_ids);
        counts.rows_cached = cached.num_copied();
        return counts;
    }

    const Lease lease(*this);
    Lane &lane = *lease;
    std::vector<PlannedRead> planned(lane.tags.size());
    const auto place = [&](uint64_t tag) {
        return lane.staging.data() + static_cast<int64_t>(tag) * options_.max_read_bytes;
    };
    const auto next = [&](Read &read) {
        PlannedRead &own = planned[read.tag];
        if (!plan.next(own)) return false;
        read.file = &files.file(static_cast<size_t>(own.file));
        read.offset = own.offset;
        read.length = own.length;
        read.required = own.required;
        read.out = place(read.tag);
        return true;
    };
    const auto done = [&](uint64_t tag) {
        const PlannedRead &own = planned[tag];
        const uint8_t *bytes = place(tag);
        for (int64_t i = own.first; i < own.last; ++i) {
            uint8_t *target = out + rows.position(i) * row_bytes;
            const int64_t begin = plan.offset_in_file(i, own.file) - own.offset;
            if (begin >= 0 && begin + row_bytes <= own.length) {
                copy_row(target, bytes + begin);
                continue;
            }
            // The row goes on in the read before or after.
            const int64_t from = std::max<int64_t>(begin, 0);
            const int64_t to = std::min(begin + row_bytes, own.length);
            std::memcpy(target + (from - begin), bytes + from, static_cast<size_t>(to - from));
        }
    };
    const auto meanwhile = [&] {
        cached.advance(cached_ids_per_look);
        return !cached.is_done();
    };
    run_reads(lane, counts, next, done, !cached.is_done(), meanwhile);
    counts.rows_read = plan.num_distinct_rows();
    counts.bytes_useful = counts.rows_read * row_bytes;
    counts.rows_cached = cached.num_copied();
    return counts;
}

template ReadCounts Reader::gather(const FileSet &, const RowLayout &, const int32_t *, int64_t,
                                   const CachedRows &, int64_t, uint8_t *, int64_t);
template ReadCounts Reader::gather(const FileSet &, const RowLayout &, const int64_t *, int64_t,
                                   const CachedRows &, int64_t, uint8_t *, int64_t);

ReadCounts Reader::read(const FileSet &files, const std::vector<ReadRange> &ranges, uint8_t *out,
                        int64_t out_bytes) {
    ReadCounts counts;
    for (size_t i = 0; i < ranges.size(); ++i) {
        const ReadRange &range = ranges[i];
        const std::string name = "range " + std::to_string(i);
        if (range.file < 0 || range.file >= static_cast<int64_t>(files.size()))
            throw out_of_range(name, ": file ", range.file, " is outside [0, ", files.size(), ")");
        if (range.offset < 0 || range.num_bytes < 0)
            throw invalid(name, ": offset and num_bytes must not be negative");
        const int64_t end = checked_add(range.offset, range.num_bytes, name.c_str());
        const auto file = static_cast<size_t>(range.file);
        const int64_t body_bytes = files.begin(file + 1) - files.begin(file);
        if (end > body_bytes)
            throw out_of_range(name, ": bytes ", range.offset, " to ", end, " of ",
                               files.file(file).path(), " are outside its body of ", body_bytes);
        if (range.out_offset < 0 || range.out_offset > out_bytes ||
            range.num_bytes > out_bytes - range.out_offset)
            throw out_of_range(name, ": ", range.num_bytes, " bytes at ", range.out_offset, " of "
                               "out, which has ", out_bytes);
        counts.bytes_useful += range.num_bytes;
    }
    if (counts.bytes_useful == 0) return counts;

    // Where a piece that goes through staging memory is copied to; null: it went straight.
    struct Piece {
        uint8_t *target = nullptr;
        int64_t begin = 0, num_bytes = 0;
    };
    const Lease lease(*this);
    Lane &lane = *lease;
    std::vector<Piece> pieces(lane.tags.size());
    const auto place = [&](uint64_t tag) {
        return lane.staging.data() + static_cast<int64_t>(tag) * options_.max_read_bytes;
    };
    size_t index = 0;
    int64_t done_bytes = 0;  // of ranges[index]
    const auto next = [&](Read &read) {
        while (index < ranges.size() && done_bytes == ranges[index].num_bytes) {
            ++index;
            done_bytes = 0;
        }
        if (index == ranges.size()) return false;
        const ReadRange &range = ranges[index];
        const OpenFile &file = files.file(static_cast<size_t>(range.file));
        const int64_t align = file.offset_alignment();
        const int64_t begin = range.offset + done_bytes, left = range.num_bytes - done_bytes;
        uint8_t *target = out + range.out_offset + done_bytes;
        read.file = &file;
        Piece &piece = pieces[read.tag];
        if (begin % align == 0 && left >= align &&
            reinterpret_cast<uintptr_t>(target) %
                    static_cast<uintptr_t>(file.memory_alignment()) == 0) {
            read.offset = begin;
            read.length = read.required =
                std::min(left / align * align, std::max(straight_read_bytes, align));
            read.out = target;
            piece = {};
            done_bytes += read.length;
            return true;
        }
        const int64_t first = begin / align * align;
        const int64_t end =
            std::min((begin + left + align - 1) / align * align, first + options_.max_read_bytes);
        read.offset = first;
        read.length = end - first;
        read.out = place(read.tag);
        piece = {target, begin - first, std::min(end, begin + left) - begin};
        read.required = piece.begin + piece.num_bytes;
        done_bytes += piece.num_bytes;
        return true;
    };
    const auto done = [&](uint64_t tag) {
        const Piece &piece = pieces[tag];
        if (piece.target != nullptr)
            std::memcpy(piece.target, place(tag) + piece.begin,
                        static_cast<size_t>(piece.num_bytes));
    };
    run_reads(lane, counts, next, done, false, [] { return false; });
    return counts;
}

ReadCounts Reader::stream(const FileSet &files, int64_t file, int64_t offset, int64_t num_bytes,
                          const TakePiece &take) {
    if (file < 0 || file >= static_cast<int64_t>(files.size()))
        throw out_of_range("file ", file, " is outside [0, ", files.size(), ")");
    const OpenFile &source = files.file(static_cast<size_t>(file));
    const int64_t align = source.offset_alignment();
    const int64_t body_bytes =
        files.begin(static_cast<size_t>(file) + 1) - files.begin(static_cast<size_t>(file));
    if (offset < 0 || num_bytes < 0 || offset > body_bytes || num_bytes > body_bytes - offset)
        throw out_of_range(num_bytes, " bytes at ", offset, " of ", source.path(), " are outside "
                           "its body of ", body_bytes);
    if (offset % align != 0 || options_.max_read_bytes % align != 0)
        throw invalid("reads of ", source.path(), " must be aligned to ", align, " bytes; the "
                      "offset is ", offset, ", max_read_bytes ", options_.max_read_bytes);
    ReadCounts counts;
    counts.bytes_useful = num_bytes;
    if (num_bytes == 0) return counts;
    const Lease lease(*this);
    Lane &lane = *lease;
    std::vector<int64_t> begins(lane.tags.size());  // in the range, of each place's read
    const auto place = [&](uint64_t tag) {
        return lane.staging.data() + static_cast<int64_t>(tag) * options_.max_read_bytes;
    };
    int64_t next_begin = 0;
    const auto next = [&](Read &read) {
        if (next_begin == num_bytes) return false;
        read.file = &source;
        read.offset = offset + next_begin;
        read.required = std::min(num_bytes - next_begin, options_.max_read_bytes);
        read.length = (read.required + align - 1) / align * align;
        read.out = place(read.tag);
        begins[read.tag] = next_begin;
        next_begin += read.required;
        return true;
    };
    const auto done = [&](uint64_t tag) {
        const int64_t begin = begins[tag];
        take(begin, place(tag), std::min(num_bytes - begin, options_.max_read_bytes));
    };
    run_reads(lane, counts, next, done, false, [] { return false; });
    return counts;
}

}  // namespace gnnstore
