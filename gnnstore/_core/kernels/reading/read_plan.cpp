#include "kernels/reading/read_plan.h"

#include <algorithm>
#include <array>
#include <bit>
#include <utility>

#include "kernels/base/errors.h"

namespace gnnstore {
namespace {

// Below this many keys a comparison sort is as fast, and needs no second array.
constexpr int64_t min_radix_keys = 2048;
// 2,048 counters fit the first-level cache; 24-bit row ids take three passes of 8 bits.
constexpr int max_digit_bits = 11;

}  // namespace

template <class Id>
WantedRows::WantedRows(const Id *ids, const int32_t *slots, int64_t num_ids, int64_t num_rows)
    : position_bits_(std::bit_width(static_cast<uint64_t>(num_ids))) {
    const int row_bits = std::bit_width(static_cast<uint64_t>(std::max<int64_t>(num_rows, 1) - 1));
    require(row_bits + position_bits_ <= 64, num_ids, " ids of a table of ", num_rows, " rows are "
            "too many for one call; split them");
    size_ = num_ids;
    if (slots != nullptr)
        size_ = std::count_if(slots, slots + num_ids, [](int32_t slot) { return slot < 0; });
    keys_ = PooledArray<uint64_t>(size_);
    int64_t size = 0;
    for (int64_t k = 0; k < num_ids; ++k)
        if (slots == nullptr || slots[k] < 0)
            keys_[size++] = static_cast<uint64_t>(ids[k]) << position_bits_ |
                            static_cast<uint64_t>(k);
    sort(row_bits);
}

template WantedRows::WantedRows(const int32_t *, const int32_t *, int64_t, int64_t);
template WantedRows::WantedRows(const int64_t *, const int32_t *, int64_t, int64_t);

void WantedRows::sort(int row_bits) {
    if (size_ < min_radix_keys) {
        std::sort(keys_.data(), keys_.data() + size_);
        return;
    }
    // Positions ascend already, and each pass keeps the order of equal rows.
    const int num_passes = (row_bits + max_digit_bits - 1) / max_digit_bits;
    if (num_passes == 0) return;
    const int digit_bits = (row_bits + num_passes - 1) / num_passes;
    const uint64_t mask = (uint64_t{1} << digit_bits) - 1;
    PooledArray<uint64_t> sorted(size_);
    for (int pass = 0; pass < num_passes; ++pass) {
        const int shift = position_bits_ + pass * digit_bits;
        std::array<int64_t, (1 << max_digit_bits) + 1> begins{};
        for (int64_t i = 0; i < size_; ++i) ++begins[(keys_[i] >> shift & mask) + 1];
        for (size_t digit = 1; digit < begins.size(); ++digit) begins[digit] += begins[digit - 1];
        for (int64_t i = 0; i < size_; ++i) sorted[begins[keys_[i] >> shift & mask]++] = keys_[i];
        std::swap(keys_, sorted);
    }
}

ReadPlan::ReadPlan(const FileSet &files, const RowLayout &layout, const WantedRows &rows,
                   int64_t gap_bytes, int64_t max_read_bytes)
    : files_(files),
      layout_(layout),
      rows_(rows),
      gap_bytes_(gap_bytes),
      max_read_bytes_(max_read_bytes),
      alignment_(files.alignment()),
      shift_(std::has_single_bit(static_cast<uint64_t>(layout.rows_per_page))
                 ? std::countr_zero(static_cast<uint64_t>(layout.rows_per_page))
                 : -1) {}

// Takes the next row, with all its repetitions: their bytes are fetched once.
void ReadPlan::absorb() {
    const int64_t row = rows_.row(next_row_);
    do ++next_row_;
    while (next_row_ < rows_.size() && rows_.row(next_row_) == row);
    ++num_distinct_rows_;
}

void ReadPlan::open_extent() {
    const int64_t offset = place(rows_.row(next_row_));
    while (offset >= files_.begin(static_cast<size_t>(file_) + 1)) ++file_;
    const int64_t in_file = offset - files_.begin(static_cast<size_t>(file_));
    is_open_ = true;
    begin_ = floor(in_file);
    end_ = ceil(in_file + layout_.row_bytes);
    first_row_ = next_row_;
    absorb();
}

bool ReadPlan::next(PlannedRead &read) {
    if (!is_open_) {
        if (next_row_ == rows_.size()) return false;
        open_extent();
    }
    const int64_t limit = begin_ + max_read_bytes_;
    const int64_t file_begin = files_.begin(static_cast<size_t>(file_));
    const int64_t file_end = files_.begin(static_cast<size_t>(file_) + 1);
    // Up to the limit itself: the next row may share the last block.
    while (end_ <= limit && next_row_ < rows_.size()) {
        const int64_t offset = place(rows_.row(next_row_));
        if (offset >= file_end || floor(offset - file_begin) - end_ > gap_bytes_) break;
        end_ = std::max(end_, ceil(offset - file_begin + layout_.row_bytes));
        absorb();
    }
    const int64_t end = std::min(end_, limit);
    int64_t last = next_row_;
    while (offset_in_file(last - 1, file_) >= end) --last;  // merged, but behind this read
    const int64_t rows_end = offset_in_file(last - 1, file_) + layout_.row_bytes;
    read = {file_, begin_, end - begin_, std::min(rows_end, end) - begin_, first_row_, last};
    is_open_ = end_ > end;
    if (is_open_) {
        begin_ = end;
        first_row_ = next_row_;
        while (first_row_ > 0 &&
               offset_in_file(first_row_ - 1, file_) + layout_.row_bytes > end)
            --first_row_;
        // A read that would fall into a gap is spared.
        while (floor(offset_in_file(first_row_, file_)) >= begin_ + max_read_bytes_)
            begin_ += max_read_bytes_;
    }
    return true;
}

}  // namespace gnnstore
