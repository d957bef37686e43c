#include "kernels/rows/rows.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <vector>

#include "kernels/base/check_ids.h"
#include "kernels/base/errors.h"
#include "kernels/base/parallel.h"
#include "kernels/base/row_copy.h"

namespace gnnstore {

void RowLayout::check() const {
    require(num_rows >= 0, "num_rows must not be negative, got ", num_rows);
    require(row_bytes >= 1, "row_bytes must be at least 1, got ", row_bytes);
    require(rows_per_page >= 1, "rows_per_page must be at least 1, got ", rows_per_page);
    const int64_t used = checked_multiply(rows_per_page, row_bytes, "a page");
    require(page_stride_bytes >= used, "page_stride_bytes is ", page_stride_bytes, ", but ",
            rows_per_page, " rows of ", row_bytes, " bytes need ", used);
    const int64_t num_pages = num_rows / rows_per_page + (num_rows % rows_per_page != 0);
    const int64_t table = checked_multiply(num_pages, page_stride_bytes, "the table");
    require(begin_bytes >= 0 && begin_bytes <= std::numeric_limits<int64_t>::max() - table,
            "begin_bytes is out of range: ", begin_bytes);
}

void RowLayout::check_output(int64_t num_out, int64_t out_bytes) const {
    const int64_t wanted = checked_multiply(num_out, row_bytes, "the output");
    require(out_bytes == wanted, "out must hold ", num_out, " rows of ", row_bytes, " bytes = ",
            wanted, " bytes, got ", out_bytes);
}

namespace {

// Finds a row's place. Three kinds, because a 64-bit division per row would cost as much
// as copying a short row.
struct DensePlace {
    int64_t row_bytes;
    explicit DensePlace(const RowLayout &layout) : row_bytes(layout.row_bytes) {}
    int64_t operator()(int64_t row) const { return row * row_bytes; }
};

struct ShiftPlace {
    int64_t row_bytes, stride, mask;
    int shift;
    explicit ShiftPlace(const RowLayout &layout)
        : row_bytes(layout.row_bytes),
          stride(layout.page_stride_bytes),
          mask(layout.rows_per_page - 1),
          shift(std::countr_zero(static_cast<uint64_t>(layout.rows_per_page))) {}
    int64_t operator()(int64_t row) const {
        return (row >> shift) * stride + (row & mask) * row_bytes;
    }
};

struct DividePlace {
    RowLayout layout;
    explicit DividePlace(const RowLayout &layout) : layout(layout) {}
    int64_t operator()(int64_t row) const { return layout.offset(row); }
};

// Takes rows one by one and writes them one behind the other. Three kinds again: a row size
// known to the compiler makes the copy a few moves; rows of whole lines are streamed as
// they come; others are joined to lines first.
template <int64_t row_bytes>
class FixedWriter {
public:
    explicit FixedWriter(uint8_t *out) : out_(out) {}
    void put(const uint8_t *row, int64_t) {
        std::memcpy(out_, row, row_bytes);
        out_ += row_bytes;
    }

private:
    uint8_t *out_;
};

class CachedWriter {
public:
    explicit CachedWriter(uint8_t *out) : out_(out) {}
    void put(const uint8_t *row, int64_t row_bytes) {
        std::memcpy(out_, row, static_cast<size_t>(row_bytes));
        out_ += row_bytes;
    }

private:
    uint8_t *out_;
};

class LineWriter {
public:
    explicit LineWriter(uint8_t *out) : out_(out) {}
    ~LineWriter() { stream_fence(); }
    void put(const uint8_t *row, int64_t row_bytes) {
        copy_(out_, row, row_bytes);
        out_ += row_bytes;
    }

private:
    uint8_t *out_;
    const StreamCopy copy_ = stream_copy();
};

class JoiningWriter {
public:
    explicit JoiningWriter(uint8_t *out) : out_(out) {}
    ~JoiningWriter() {
        std::memcpy(out_, buffer_, static_cast<size_t>(size_));
        stream_fence();
    }
    void put(const uint8_t *row, int64_t row_bytes) {
        while (row_bytes > 0) {
            const int64_t part = std::min(row_bytes, capacity - size_);
            std::memcpy(buffer_ + size_, row, static_cast<size_t>(part));
            row += part;
            row_bytes -= part;
            size_ += part;
            if (size_ == capacity) {
                copy_(out_, buffer_, capacity);
                out_ += capacity;
                size_ = 0;
            }
        }
    }

private:
    static constexpr int64_t capacity = 8192;  // a fraction of the first-level cache
    uint8_t *out_;
    const StreamCopy copy_ = stream_copy();
    int64_t size_ = 0;
    alignas(stream_line_bytes) uint8_t buffer_[capacity];
};

template <class Place, class Writer, class Id>
void copy_rows(const uint8_t *table, const Place &place, int64_t row_bytes, const Id *ids,
               int64_t num_ids, uint8_t *out) {
    int64_t offsets[max_prefetch_rows];  // places found once, when prefetched
    const int64_t ahead = rows_ahead(row_bytes);
    for (int64_t k = 0; k < std::min(ahead, num_ids); ++k) {
        offsets[k] = place(ids[k]);
        prefetch_row(table + offsets[k], row_bytes);
    }
    Writer writer(out);
    int64_t slot = 0;
    for (int64_t k = 0; k < num_ids; ++k) {
        const int64_t offset = offsets[slot];
        if (k + ahead < num_ids) {
            offsets[slot] = place(ids[k + ahead]);
            prefetch_row(table + offsets[slot], row_bytes);
        }
        if (++slot == ahead) slot = 0;
        writer.put(table + offset, row_bytes);
    }
}

template <class Id>
using CopyRows = void (*)(const uint8_t *table, const RowLayout &layout, const Id *ids,
                          int64_t num_ids, uint8_t *out);

template <class Place, class Writer, class Id>
void copy_rows_of(const uint8_t *table, const RowLayout &layout, const Id *ids, int64_t num_ids,
                  uint8_t *out) {
    copy_rows<Place, Writer>(table, Place(layout), layout.row_bytes, ids, num_ids, out);
}

template <class Place, class Id>
CopyRows<Id> choose_writer(int64_t row_bytes, const uint8_t *out, int64_t out_bytes) {
    const bool streams = should_stream(out, out_bytes, row_bytes);
    if (streams && row_bytes % stream_line_bytes == 0) return copy_rows_of<Place, LineWriter>;
    if (streams) return copy_rows_of<Place, JoiningWriter>;
    switch (row_bytes) {
        case 4: return copy_rows_of<Place, FixedWriter<4>>;
        case 8: return copy_rows_of<Place, FixedWriter<8>>;
        case 16: return copy_rows_of<Place, FixedWriter<16>>;
        case 32: return copy_rows_of<Place, FixedWriter<32>>;
        case 64: return copy_rows_of<Place, FixedWriter<64>>;
        case 128: return copy_rows_of<Place, FixedWriter<128>>;
        default: return copy_rows_of<Place, CachedWriter>;
    }
}

template <class Id>
CopyRows<Id> choose_copy(const RowLayout &layout, const uint8_t *out, int64_t out_bytes) {
    if (layout.is_dense()) return choose_writer<DensePlace, Id>(layout.row_bytes, out, out_bytes);
    if (std::has_single_bit(static_cast<uint64_t>(layout.rows_per_page)))
        return choose_writer<ShiftPlace, Id>(layout.row_bytes, out, out_bytes);
    return choose_writer<DividePlace, Id>(layout.row_bytes, out, out_bytes);
}

// Cuts the rows of a gather into tasks, whose first rows and sizes `copy` is called with, and with
// memory of the thread's own.
template <class Id, class Copy>
void gather_by_tasks(const uint8_t *table, int64_t table_bytes, const RowLayout &layout,
                     const Id *ids, int64_t num_ids, const uint8_t *out, int64_t out_bytes,
                     int64_t out_row_bytes, int num_threads, const Copy &copy) {
    check_num_threads(num_threads);
    if (table_bytes < layout.end_offset())
        throw invalid("the table holds ", table_bytes, " bytes, but its last row ends at byte ",
                      layout.end_offset(), "; it is truncated, or the row layout is wrong");
    if (overlap(out, out_bytes, table, table_bytes))
        throw invalid("out overlaps the table");
    if (overlap(out, out_bytes, ids, num_ids))
        throw invalid("out overlaps the ids");
    check_ids(ids, num_ids, layout.num_rows);

    const int64_t task_rows = rows_per_task(out_row_bytes);
    const int64_t num_tasks = num_ids / task_rows + (num_ids % task_rows != 0);
    run_workers(num_threads, num_tasks, [&](TaskQueue &queue) {
        std::vector<uint8_t> scratch;
        for (int64_t task; queue.take(task);) {
            const int64_t begin = task * task_rows;
            const int64_t size = std::min(num_ids - begin, task_rows);
            copy(begin, size, scratch);
        }
    });
}

}  // namespace

template <class Id>
void gather_rows(const uint8_t *table, int64_t table_bytes, const RowLayout &layout, const Id *ids,
                 int64_t num_ids, uint8_t *out, int64_t out_bytes, int num_threads) {
    layout.check();
    layout.check_output(num_ids, out_bytes);
    const CopyRows<Id> copy = choose_copy<Id>(layout, out, out_bytes);
    gather_by_tasks(table, table_bytes, layout, ids, num_ids, out, out_bytes, layout.row_bytes,
                    num_threads, [&](int64_t begin, int64_t size, std::vector<uint8_t> &) {
                        copy(table, layout, ids + begin, size, out + begin * layout.row_bytes);
                    });
}

template <class Id>
void gather_decoded(const uint8_t *table, int64_t table_bytes, const RowLayout &layout,
                    const Id *ids, int64_t num_ids, const Decoding &decoding, uint8_t *out,
                    int64_t out_bytes, int num_threads) {
    layout.check();
    decoding.check(layout.row_bytes, out);
    const int64_t row_bytes = decoding.row_bytes();
    RowLayout{num_ids, row_bytes, 1, row_bytes}.check_output(num_ids, out_bytes);
    // A task's rows are copied first and decoded then, out of the processor's cache: streamed stores
    // between requests of rows from memory hold these up, and take twice as long in all.
    const CopyRows<Id> copy = choose_copy<Id>(layout, nullptr, 0);
    const DecodeRows decode = choose_decode(decoding.type);
    const bool streams = should_stream(out, out_bytes, row_bytes);
    gather_by_tasks(
        table, table_bytes, layout, ids, num_ids, out, out_bytes, row_bytes, num_threads,
        [&](int64_t begin, int64_t size, std::vector<uint8_t> &scratch) {
            scratch.resize(static_cast<size_t>(size * layout.row_bytes));
            copy(table, layout, ids + begin, size, scratch.data());
            decode(scratch.data(), size, decoding, out + begin * row_bytes, streams);
        });
}

template void gather_decoded(const uint8_t *, int64_t, const RowLayout &, const int32_t *, int64_t,
                             const Decoding &, uint8_t *, int64_t, int);
template void gather_decoded(const uint8_t *, int64_t, const RowLayout &, const int64_t *, int64_t,
                             const Decoding &, uint8_t *, int64_t, int);

template void gather_rows(const uint8_t *, int64_t, const RowLayout &, const int32_t *, int64_t,
                          uint8_t *, int64_t, int);
template void gather_rows(const uint8_t *, int64_t, const RowLayout &, const int64_t *, int64_t,
                          uint8_t *, int64_t, int);

}  // namespace gnnstore
