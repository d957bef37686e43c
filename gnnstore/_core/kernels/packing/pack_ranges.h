// Ranges of the rows that are packed at a time. Where the missed rows of all batches are in memory,
// one range has all of them. Where they are in a file, as ids of a whole epoch may be, ranges of
// the table are packed one after the other, as large as there is memory for: each batch's rows
// ascend, so that a range takes the next ones of each, and every file is read once and in order.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/files/spill_file.h"
#include "kernels/packing/pack_memory.h"
#include "kernels/packing/pack_windows.h"

namespace gnnstore {

template <class Id>
class MissedRanges {
public:
    explicit MissedRanges(std::vector<int64_t> sizes) : sizes_(std::move(sizes)) {}
    virtual ~MissedRanges() = default;
    MissedRanges(const MissedRanges &) = delete;
    MissedRanges &operator=(const MissedRanges &) = delete;

    int64_t num_batches() const { return static_cast<int64_t>(sizes_.size()); }
    int64_t size(int64_t batch) const { return sizes_[static_cast<size_t>(batch)]; }
    int64_t num_rows() const;  // of all batches

    // Lists the rows of the next range, which stay where they are until the next call; false if
    // none is left. Each batch's rows ascend, from all that came before on.
    virtual bool next(int64_t num_rows_in_table, int num_threads, SortedRows<Id> &range) = 0;

protected:
    const std::vector<int64_t> sizes_;  // rows of each batch
};

// Throws std::invalid_argument for rows that do not ascend, or are not below the table's end.
template <class Id>
class MissedInMemory final : public MissedRanges<Id> {
public:
    explicit MissedInMemory(SortedRows<Id> rows);
    bool next(int64_t num_rows_in_table, int num_threads, SortedRows<Id> &range) override;

private:
    SortedRows<Id> rows_;
    bool is_over_ = false;
};

// The missed rows of batches in a file: sizes[i] ids from byte begins[i] on.
template <class Id>
struct MissedFile {
    const SpillFile &file;
    const int64_t *begins;  // in bytes
    const uint32_t *crcs;   // SpillFile::checksum
    // Every `stride`-th row of each batch, the first one among them; one batch behind the other.
    const Id *samples;
    int64_t num_samples;
    int64_t stride;
    int64_t max_rows;  // in memory
};

// Throws IoError: EBADMSG if the file does not hold what was written, which for a batch may be
// found out with its last row. Throws std::invalid_argument if max_rows are fewer than a stride of
// each batch, with which every range has a row.
template <class Id>
class MissedOnDisk final : public MissedRanges<Id> {
public:
    MissedOnDisk(std::vector<int64_t> sizes, const MissedFile<Id> &from);
    bool next(int64_t num_rows_in_table, int num_threads, SortedRows<Id> &range) override;

private:
    int64_t count_below(size_t batch, int64_t bound) const;
    int64_t end_of_range(int64_t num_rows_in_table) const;
    int64_t read(size_t batch, Id *rows, int64_t count, int64_t num_rows_in_table);
    [[noreturn]] void fail(size_t batch, const char *what) const;

    const MissedFile<Id> from_;
    std::vector<int64_t> first_sample_;  // of each batch
    std::vector<int64_t> num_done_;      // rows of each batch
    std::vector<int64_t> last_;          // of these rows; -1: none
    std::vector<uint32_t> crcs_;         // of these rows
    int64_t end_ = 0;                    // of the last range
    int64_t num_left_;                   // rows of all batches
    PackMemory memory_;
};

}  // namespace gnnstore
