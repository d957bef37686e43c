// From the rows of a batch to the reads that fetch them: sorted, each page once, near ones
// together. `tests.support.twins.reads.plan_reads` defines the result.
#pragma once

#include <cstdint>

#include "kernels/base/pooled_array.h"
#include "kernels/reading/row_reader.h"
#include "kernels/rows/rows.h"

namespace gnnstore {

// The rows that are to be read, in the order of the table, each with its position in the
// batch. Row and position share 64 bits, so that sorting moves half as much memory.
class WantedRows {
public:
    // The rows of ids[k] with slots[k] < 0, or of all where slots is null. Checks neither.
    template <class Id>
    WantedRows(const Id *ids, const int32_t *slots, int64_t num_ids, int64_t num_rows);

    int64_t size() const { return size_; }
    int64_t row(int64_t i) const { return static_cast<int64_t>(keys_[i] >> position_bits_); }
    int64_t position(int64_t i) const {
        return static_cast<int64_t>(keys_[i] & ((uint64_t{1} << position_bits_) - 1));
    }

private:
    void sort(int row_bits);

    int position_bits_;
    int64_t size_ = 0;
    PooledArray<uint64_t> keys_;
};

// One read, and the rows [first, last) of WantedRows of which it holds at least a part.
struct PlannedRead {
    int64_t file;
    int64_t offset;  // in the file
    int64_t length;
    int64_t required;  // up to the end of the last row's part
    int64_t first, last;
};

// Makes the reads one by one, in order: what is planned need not be kept.
class ReadPlan {
public:
    ReadPlan(const FileSet &files, const RowLayout &layout, const WantedRows &rows,
             int64_t gap_bytes, int64_t max_read_bytes);

    bool next(PlannedRead &read);
    int64_t num_distinct_rows() const { return num_distinct_rows_; }  // so far

    // Offset of row i of WantedRows in the file where the latest read lies.
    int64_t offset_in_file(int64_t i, int64_t file) const {
        return place(rows_.row(i)) - files_.begin(static_cast<size_t>(file));
    }

private:
    int64_t place(int64_t row) const {
        // A 64-bit division per row would cost as much as copying a short row.
        if (shift_ < 0) return layout_.offset(row);
        return layout_.begin_bytes + (row >> shift_) * layout_.page_stride_bytes +
               (row & (layout_.rows_per_page - 1)) * layout_.row_bytes;
    }
    int64_t floor(int64_t offset) const { return offset / alignment_ * alignment_; }
    int64_t ceil(int64_t offset) const { return floor(offset + alignment_ - 1); }
    void absorb();
    void open_extent();

    const FileSet &files_;
    const RowLayout &layout_;
    const WantedRows &rows_;
    const int64_t gap_bytes_, max_read_bytes_, alignment_;
    const int shift_;

    int64_t next_row_ = 0;  // the first that no extent has taken yet
    int64_t num_distinct_rows_ = 0;
    // The extent of merged rows that is being cut into reads.
    bool is_open_ = false;
    int64_t file_ = 0;
    int64_t begin_ = 0, end_ = 0;  // what is left of it, in the file
    int64_t first_row_ = 0;        // the first with bytes in it
};

}  // namespace gnnstore
