// Rows of a table in pages, copied to their places in a batch.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/rows/decode.h"

namespace gnnstore {

// Where rows lie: row i starts at byte
//   begin_bytes + (i / rows_per_page) * page_stride_bytes + (i % rows_per_page) * row_bytes.
// A dense table has one row per page and a stride of row_bytes; a row longer than a page
// has a stride of several pages.
struct RowLayout {
    int64_t num_rows;
    int64_t row_bytes;
    int64_t rows_per_page;
    int64_t page_stride_bytes;
    int64_t begin_bytes = 0;  // not 0 only for rows that are read from a part of a file

    // Throws std::invalid_argument unless the fields fit together and their products fit
    // in 64 bits; the other functions rely on it.
    void check() const;

    int64_t offset(int64_t row) const {
        return begin_bytes + row / rows_per_page * page_stride_bytes +
               row % rows_per_page * row_bytes;
    }
    // The bytes that a table must have: the end of its last row.
    int64_t end_offset() const { return num_rows == 0 ? 0 : offset(num_rows - 1) + row_bytes; }
    // Throws unless `out_bytes` are whole rows.
    void check_output(int64_t num_out, int64_t out_bytes) const;
    bool is_dense() const { return rows_per_page * row_bytes == page_stride_bytes; }
};

// Copies row ids[k] of the table to out + k * row_bytes. Nothing is written when an id is
// outside [0, num_rows).
template <class Id>
void gather_rows(const uint8_t *table, int64_t table_bytes, const RowLayout &layout, const Id *ids,
                 int64_t num_ids, uint8_t *out, int64_t out_bytes, int num_threads);

// Writes to out, one behind the other, what the rows ids[k] of a table of int8 stand for. Nothing is
// written when an id is outside [0, num_rows).
template <class Id>
void gather_decoded(const uint8_t *table, int64_t table_bytes, const RowLayout &layout,
                    const Id *ids, int64_t num_ids, const Decoding &decoding, uint8_t *out,
                    int64_t out_bytes, int num_threads);

// Reads all rows, in order and without the pages' padding, from files that hold whole pages
// each (the last may end behind its last row).
void read_pages(const std::vector<std::string> &paths, const std::vector<int64_t> &body_bytes,
                const RowLayout &layout, uint8_t *out, int64_t out_bytes, int num_threads);

}  // namespace gnnstore
