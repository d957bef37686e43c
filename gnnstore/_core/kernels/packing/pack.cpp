#include "kernels/packing/pack.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <mutex>
#include <string>
#include <system_error>
#include <thread>

#include "kernels/base/errors.h"
#include "kernels/base/row_copy.h"
#include "kernels/base/stream_copy.h"
#include "kernels/base/system.h"
#include "kernels/packing/pack_buffers.h"
#include "kernels/packing/pack_checks.h"
#include "kernels/packing/pack_memory.h"
#include "kernels/packing/pack_pieces.h"

namespace gnnstore {
namespace {

// Threads that write: a disk needs several writes in flight, and they wait more than they work.
// 256 KiB each: 1.9 GB/s with 4 threads and with 8, 1.5 with 1. Where memory is short, or batches
// are many, writes are smaller, and more are needed: 32 KiB each, 1.0 GB/s with 6, 1.2 with 24.
constexpr int64_t max_writers = 16;
constexpr int64_t max_read_bytes = 1 << 20;
constexpr std::chrono::milliseconds longest_wait{20};

template <class Id>
class Packer {
public:
    Packer(const FileSet &files, const RowLayout &layout, MissedRanges<Id> &missed,
           const std::vector<std::unique_ptr<PackFile>> &outputs, const int64_t *chunk_files,
           const int64_t *chunk_offsets, uint32_t *crcs, const PackOptions &options,
           PackProgress *progress);

    PackCounts run();

private:
    // Where the rows of a batch go: packed so far, and the buffer that is being filled.
    struct Chunk {
        const PackFile *file;
        int64_t offset;  // of the buffer in the file
        uint32_t *crcs;  // of its pieces
        int64_t num_summed = 0;  // bytes of rows that these know
        uint8_t *buffer = nullptr;
        int64_t num_bytes = 0;  // in the buffer
    };
    struct Slot {
        PackWindow window;
        int64_t number = -1;     // of the window
        int64_t reads_left = 0;  // of the reading thread
        bool is_ready = false;
        int64_t num_users = 0;  // copying threads that are not done with it
    };

    int64_t num_batches() const { return missed_.num_batches(); }
    void pack_range();
    template <class Work>
    void guarded(const Work &work);
    void read_windows();
    int64_t add_reads(const PackWindow &window, size_t slot, std::deque<Read> &reads) const;
    void copy_windows(int64_t thread);
    void copy_window(const Slot &slot, int64_t first_batch, int64_t end_batch);
    void append(Chunk &chunk, const uint8_t *row);
    void hand_over(Chunk &chunk);
    void flush();
    void add_progress(int64_t num_bytes) {
        std::atomic_ref(progress_->bytes_done).fetch_add(num_bytes, std::memory_order_relaxed);
    }
    void check_stop() const {
        if (std::atomic_ref(progress_->stop).load(std::memory_order_relaxed) != 0)
            throw IoError(ECANCELED, "packing was stopped", "");
    }
    uint8_t *place(size_t slot) const {
        return windows_.data() + static_cast<int64_t>(slot) * options_.window_bytes;
    }

    const FileSet &files_;
    const RowLayout layout_;
    MissedRanges<Id> &missed_;
    const PackOptions options_;
    PackProgress *const progress_;
    const StreamCopy stream_;
    PackCounts counts_;
    SharedFailure failure_;
    PackMemory windows_;
    PackBuffers buffers_;
    SortedRows<Id> range_;         // that is being packed
    std::vector<int64_t> copied_;  // of each batch, in range_.rows
    std::vector<Chunk> chunks_;

    std::mutex mutex_;  // of the following
    std::condition_variable window_is_ready_, slot_is_free_;
    std::vector<Slot> slots_;
    int64_t num_windows_ = -1;  // of the range; -1: not known yet
    int64_t num_copiers_ = 0;   // threads that copy; 0: not known yet
    bool is_given_up_ = false;
    std::unique_ptr<ReadEngine> engine_;  // goes first: reads into windows_
};

template <class Id>
Packer<Id>::Packer(const FileSet &files, const RowLayout &layout, MissedRanges<Id> &missed,
                   const std::vector<std::unique_ptr<PackFile>> &outputs,
                   const int64_t *chunk_files, const int64_t *chunk_offsets, uint32_t *crcs,
                   const PackOptions &options, PackProgress *progress)
    : files_(files),
      layout_(layout),
      missed_(missed),
      options_(options),
      progress_(progress),
      stream_(layout.row_bytes >= min_streamed_row_bytes &&
                      layout.row_bytes % stream_line_bytes == 0
                  ? stream_copy()
                  : nullptr),
      windows_(checked_multiply(options.num_windows, options.window_bytes, "the windows")),
      buffers_(checked_add(missed.num_batches(), options.num_spare_buffers, "the buffers"),
               options.buffer_bytes,
               static_cast<int>(std::min(options.num_spare_buffers, max_writers)), failure_),
      slots_(static_cast<size_t>(options.num_windows)) {
    for (int64_t i = 0; i < num_batches(); ++i) {
        const PackFile *file = outputs[static_cast<size_t>(chunk_files[i])].get();
        chunks_.push_back({file, chunk_offsets[i], crcs});
        crcs += count_pieces(missed.size(i) * layout.row_bytes, options.piece_bytes);
    }
    engine_ = make_engine({.kind = options.kind,
                           .queue_depth = options.queue_depth,
                           .num_threads = options.num_reading_threads,
                           .staging = {windows_.data(),
                                       options.num_windows * options.window_bytes}});
}

template <class Id>
PackCounts Packer<Id>::run() {
    for (;;) {
        check_stop();
        if (!missed_.next(layout_.num_rows, options_.num_threads, range_)) break;
        pack_range();
    }
    flush();
    failure_.rethrow();
    counts_.writes = buffers_.num_writes();
    counts_.bytes_written = buffers_.bytes_written();
    counts_.rows_packed = missed_.num_rows();
    return counts_;
}

// Reads and copies the rows of a range. Batches' buffers may be partly filled afterwards.
template <class Id>
void Packer<Id>::pack_range() {
    copied_ = range_.begins;
    for (Slot &slot : slots_) slot.number = -1;
    num_windows_ = -1;
    num_copiers_ = 0;
    {
        std::vector<std::jthread> threads;
        const int64_t wanted = std::clamp<int64_t>(num_batches(), 1, options_.num_threads);
        try {
            for (int64_t i = 0; i < wanted; ++i) {
                sys::check_thread_start();
                threads.emplace_back([this, i] { guarded([&] { copy_windows(i); }); });
            }
        } catch (const std::system_error &error) {
            // Fewer threads than asked for change the time, not the result.
            if (threads.empty())
                throw IoError(EAGAIN,
                              std::string("cannot start a thread that copies: ") + error.what(),
                              "");
        }
        {
            const std::lock_guard lock(mutex_);
            num_copiers_ = static_cast<int64_t>(threads.size());
        }
        window_is_ready_.notify_all();
        guarded([&] { read_windows(); });
        engine_->drain();
    }
    failure_.rethrow();
}

// Runs a part of the work. The first part that fails makes the others give up.
template <class Id>
template <class Work>
void Packer<Id>::guarded(const Work &work) {
    try {
        work();
        return;
    } catch (const GivenUp &) {
    } catch (...) {
        failure_.set();
    }
    buffers_.give_up();
    const std::lock_guard lock(mutex_);
    is_given_up_ = true;
    window_is_ready_.notify_all();
    slot_is_free_.notify_all();
}

template <class Id>
void Packer<Id>::read_windows() {
    WindowPlan<Id> plan(files_, layout_, range_, options_.gap_bytes, options_.window_bytes);
    std::deque<Read> waiting;
    std::vector<Read> reads;
    std::vector<uint64_t> tags(static_cast<size_t>(options_.queue_depth));
    int64_t num_planned = 0;
    bool has_more = true;
    for (;;) {
        check_stop();
        // As far ahead as there are slots; the queue need not be longer than the engine's.
        while (has_more && static_cast<int64_t>(waiting.size()) < options_.queue_depth) {
            const size_t number = static_cast<size_t>(num_planned % options_.num_windows);
            Slot &slot = slots_[number];
            {
                std::unique_lock lock(mutex_);
                const auto is_free = [&] { return slot.num_users == 0 || is_given_up_; };
                // With nothing to do, waits a while; then looks whether to stop.
                if (engine_->num_in_flight() == 0 && waiting.empty())
                    slot_is_free_.wait_for(lock, longest_wait, is_free);
                if (is_given_up_) throw GivenUp();
                if (!is_free()) break;
            }
            has_more = plan.next(slot.window);
            if (!has_more) break;
            slot.reads_left = add_reads(slot.window, number, waiting);
            const std::lock_guard lock(mutex_);
            slot.number = num_planned++;
            slot.is_ready = false;
            slot.num_users = num_copiers_;
        }
        reads.clear();
        const int64_t room = options_.queue_depth - engine_->num_in_flight();
        while (!waiting.empty() && static_cast<int64_t>(reads.size()) < room) {
            counts_.bytes_read += waiting.front().length;
            ++counts_.reads;
            reads.push_back(waiting.front());
            waiting.pop_front();
        }
        if (!reads.empty()) engine_->submit(reads);
        if (engine_->num_in_flight() == 0) {
            if (has_more) continue;
            break;
        }
        const int num_finished = engine_->finished(tags.data(), 1);
        for (int i = 0; i < num_finished; ++i) {
            Slot &slot = slots_[tags[static_cast<size_t>(i)]];
            if (--slot.reads_left > 0) continue;
            add_progress(slot.window.num_bytes);
            const std::lock_guard lock(mutex_);
            slot.is_ready = true;
            window_is_ready_.notify_all();
        }
    }
    const std::lock_guard lock(mutex_);
    num_windows_ = num_planned;
    window_is_ready_.notify_all();
}

template <class Id>
int64_t Packer<Id>::add_reads(const PackWindow &window, size_t slot,
                              std::deque<Read> &reads) const {
    const size_t before = reads.size();
    for (const PackExtent &extent : window.extents) {
        const auto file = static_cast<size_t>(extent.file);
        const int64_t body_bytes = files_.begin(file + 1) - files_.begin(file);
        for (int64_t begin = extent.begin; begin < extent.end; begin += max_read_bytes) {
            Read read;
            read.file = &files_.file(file);
            read.offset = begin - files_.begin(file);
            read.length = std::min(extent.end - begin, max_read_bytes);
            // The last unit of a file may reach beyond its body.
            read.required = std::min(read.length, body_bytes - read.offset);
            read.out = place(slot) + extent.place + (begin - extent.begin);
            read.tag = slot;
            if (read.required > 0) reads.push_back(read);
        }
    }
    return static_cast<int64_t>(reads.size() - before);
}

// Each thread has batches of its own, so that their buffers need no lock.
template <class Id>
void Packer<Id>::copy_windows(int64_t thread) {
    int64_t first = 0, end = 0;
    for (int64_t number = 0;; ++number) {
        Slot &slot = slots_[static_cast<size_t>(number % options_.num_windows)];
        {
            std::unique_lock lock(mutex_);
            window_is_ready_.wait(lock, [&] {
                return is_given_up_ || number == num_windows_ ||
                       (slot.number == number && slot.is_ready);
            });
            if (is_given_up_) throw GivenUp();
            if (number == num_windows_) return;
            first = num_batches() * thread / num_copiers_;
            end = num_batches() * (thread + 1) / num_copiers_;
        }
        copy_window(slot, first, end);
        const std::lock_guard lock(mutex_);
        if (--slot.num_users == 0) slot_is_free_.notify_one();
    }
}

template <class Id>
void Packer<Id>::copy_window(const Slot &slot, int64_t first_batch, int64_t end_batch) {
    struct Item {
        const uint8_t *row;
        Chunk *chunk;
    };
    const uint8_t *const bytes = place(static_cast<size_t>(&slot - slots_.data()));
    const PackWindow &window = slot.window;
    const int64_t row_bytes = layout_.row_bytes;
    const int64_t ahead = rows_ahead(row_bytes);
    Item items[max_prefetch_rows];
    int64_t num_found = 0, num_copied = 0;
    const auto copy_next = [&] {
        const Item &item = items[num_copied++ % ahead];
        append(*item.chunk, item.row);
    };
    for (int64_t batch = first_batch; batch < end_batch; ++batch) {
        const auto i = static_cast<size_t>(batch);
        const PackExtent *extent = window.extents.data();
        const PackExtent *const end_extent = extent + window.extents.size();
        int64_t k = copied_[i];
        for (const int64_t end = range_.ends[i]; k < end; ++k) {
            const int64_t row = range_.rows[k];
            if (row >= window.end_row) break;
            const int64_t offset = layout_.offset(row);
            // Not by where it ends: the last of a file ends with a unit, perhaps behind the body.
            while (extent + 1 != end_extent && extent[1].begin <= offset) ++extent;
            const uint8_t *const source = bytes + extent->place + (offset - extent->begin);
            prefetch_row(source, row_bytes);
            if (num_found - num_copied == ahead) copy_next();
            items[num_found++ % ahead] = {source, &chunks_[i]};
        }
        copied_[i] = k;
    }
    while (num_copied < num_found) copy_next();
    // Another thread hands over the last buffers, once all copying threads have ended.
    if (stream_ != nullptr) stream_fence();
}

template <class Id>
void Packer<Id>::append(Chunk &chunk, const uint8_t *row) {
    int64_t left = layout_.row_bytes;
    while (left > 0) {
        if (chunk.buffer == nullptr) chunk.buffer = buffers_.take();
        const int64_t part = std::min(left, buffers_.buffer_bytes() - chunk.num_bytes);
        // A whole number of lines in every piece: rows and buffers are.
        if (stream_ != nullptr)
            stream_(chunk.buffer + chunk.num_bytes, row, part);
        else
            std::memcpy(chunk.buffer + chunk.num_bytes, row, static_cast<size_t>(part));
        row += part;
        left -= part;
        chunk.num_bytes += part;
        if (chunk.num_bytes == buffers_.buffer_bytes()) hand_over(chunk);
    }
}

// Writes a buffer's bytes, filled up to whole blocks: only the last one of a chunk may need that.
template <class Id>
void Packer<Id>::hand_over(Chunk &chunk) {
    if (stream_ != nullptr) stream_fence();
    // Here and not in the threads that write: these have the buffers of a chunk in any order, and a
    // piece may be in several.
    extend_pieces(chunk.crcs, options_.piece_bytes, chunk.num_summed, chunk.buffer,
                  chunk.num_bytes);
    chunk.num_summed += chunk.num_bytes;
    const int64_t unit = PackFile::alignment;
    const int64_t num_bytes = (chunk.num_bytes + unit - 1) / unit * unit;
    std::memset(chunk.buffer + chunk.num_bytes, 0,
                static_cast<size_t>(num_bytes - chunk.num_bytes));
    buffers_.write(chunk.buffer, num_bytes, *chunk.file, chunk.offset);
    add_progress(num_bytes);
    chunk.offset += num_bytes;
    chunk.buffer = nullptr;
    chunk.num_bytes = 0;
}

// Hands over whatever is left in the buffers, and waits until it is written.
template <class Id>
void Packer<Id>::flush() {
    for (Chunk &chunk : chunks_)
        if (chunk.buffer != nullptr) hand_over(chunk);
    buffers_.finish();
}

}  // namespace

template <class Id>
PackCounts pack_rows(const FileSet &files, const RowLayout &layout, MissedRanges<Id> &missed,
                     const std::vector<std::unique_ptr<PackFile>> &outputs,
                     const int64_t *chunk_files, const int64_t *chunk_offsets, uint32_t *crcs,
                     int64_t num_crcs, const PackOptions &options, PackProgress *progress) {
    check_packing(files, layout, missed, outputs, chunk_files, chunk_offsets, num_crcs, options);
    std::fill(crcs, crcs + num_crcs, 0);
    if (missed.num_rows() == 0) return {};
    return Packer<Id>(files, layout, missed, outputs, chunk_files, chunk_offsets, crcs, options,
                      progress)
        .run();
}

template PackCounts pack_rows(const FileSet &, const RowLayout &, MissedRanges<int32_t> &,
                              const std::vector<std::unique_ptr<PackFile>> &, const int64_t *,
                              const int64_t *, uint32_t *, int64_t,
                              const PackOptions &, PackProgress *);
template PackCounts pack_rows(const FileSet &, const RowLayout &, MissedRanges<int64_t> &,
                              const std::vector<std::unique_ptr<PackFile>> &, const int64_t *,
                              const int64_t *, uint32_t *, int64_t,
                              const PackOptions &, PackProgress *);

}  // namespace gnnstore
