// From the rows that batches miss to the reads of one pass over the table: what is read
// together is a window, and windows follow each other in the order of the table.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/reading/row_reader.h"
#include "kernels/rows/rows.h"

namespace gnnstore {

// The missed rows of some batches, each batch's in ascending order.
template <class Id>
struct SortedRows {
    const Id *rows;
    std::vector<int64_t> begins, ends;  // of each batch in `rows`

    int64_t num_batches() const { return static_cast<int64_t>(begins.size()); }
    int64_t size(int64_t batch) const {
        return ends[static_cast<size_t>(batch)] - begins[static_cast<size_t>(batch)];
    }
};

// Bytes of the table, counted from the first file's beginning through all bodies, and where
// they lie in the window.
struct PackExtent {
    int64_t begin = 0, end = 0;
    int64_t place = 0;
    int64_t file = 0;
};

struct PackWindow {
    std::vector<PackExtent> extents;  // ascending; a row lies in one of them
    int64_t num_bytes = 0;            // of all
    int64_t end_row = 0;              // rows below are in this window or an earlier one
};

// Bytes of a table that are handled at a time: for each such chunk, every batch is asked once
// whether it needs rows there. With 1,000 batches that takes 10 us a chunk; reading it takes 100.
inline constexpr int64_t pack_chunk_bytes = 256 << 10;

// How large the chunks of a table are, and the least that a window must hold.
int64_t chunk_bytes_of(const RowLayout &layout);
int64_t min_window_bytes(const FileSet &files, const RowLayout &layout, int64_t gap_bytes);

template <class Id>
class WindowPlan {
public:
    WindowPlan(const FileSet &files, const RowLayout &layout, const SortedRows<Id> &rows,
               int64_t gap_bytes, int64_t window_bytes);

    // Plans the next window; false if no row is left.
    bool next(PackWindow &window);

private:
    void add_chunk(int64_t first_row, PackWindow &window);
    void add(int64_t begin, int64_t end, PackWindow &window) const;

    const FileSet &files_;
    const RowLayout layout_;
    const SortedRows<Id> &rows_;
    const int64_t gap_bytes_, window_bytes_, unit_, chunk_bytes_, pages_per_chunk_;
    std::vector<int64_t> next_;   // of each batch, in rows_.rows
    std::vector<int64_t> heads_;  // the row there; past all if none is left
    std::vector<uint8_t> marks_;  // the units of a chunk that are needed
    int64_t file_ = 0;
};

}  // namespace gnnstore
