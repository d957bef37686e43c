#include "kernels/packing/pack_ranges.h"

#include <algorithm>
#include <cerrno>
#include <numeric>
#include <string>

#include "kernels/base/errors.h"
#include "kernels/base/parallel.h"
#include "kernels/files/crc32c.h"

namespace gnnstore {
namespace {

// Windows and copies rely on it, and rows come from Python or from a file.
template <class Id>
bool do_ascend(const Id *rows, int64_t count, int64_t previous, int64_t end) {
    for (int64_t k = 0; k < count; ++k) {
        if (rows[k] <= previous || rows[k] >= end) return false;
        previous = rows[k];
    }
    return true;
}

template <class Id>
std::vector<int64_t> sizes_of(const SortedRows<Id> &rows) {
    std::vector<int64_t> sizes;
    for (int64_t i = 0; i < rows.num_batches(); ++i) sizes.push_back(rows.size(i));
    return sizes;
}

int64_t sum_of(const std::vector<int64_t> &sizes) {
    return std::accumulate(sizes.begin(), sizes.end(), int64_t{0});
}

}  // namespace

template <class Id>
int64_t MissedRanges<Id>::num_rows() const {
    return sum_of(sizes_);
}

template <class Id>
MissedInMemory<Id>::MissedInMemory(SortedRows<Id> rows)
    : MissedRanges<Id>(sizes_of(rows)), rows_(std::move(rows)) {}

template <class Id>
bool MissedInMemory<Id>::next(int64_t num_rows_in_table, int num_threads, SortedRows<Id> &range) {
    if (is_over_) return false;
    is_over_ = true;
    run_workers(num_threads, this->num_batches(), [&](TaskQueue &queue) {
        for (int64_t i; queue.take(i);)
            if (!do_ascend(rows_.rows + rows_.begins[static_cast<size_t>(i)], this->size(i), -1,
                           num_rows_in_table))
                throw invalid("the packed rows of batch ", i, " do not ascend, or are not below ",
                              num_rows_in_table);
    });
    range = rows_;
    return true;
}

template <class Id>
MissedOnDisk<Id>::MissedOnDisk(std::vector<int64_t> sizes, const MissedFile<Id> &from)
    : MissedRanges<Id>(std::move(sizes)),
      from_(from),
      num_done_(this->sizes_.size(), 0),
      last_(this->sizes_.size(), -1),
      num_left_(sum_of(this->sizes_)),
      memory_(std::min(num_left_, std::max<int64_t>(from.max_rows, 0)) *
              static_cast<int64_t>(sizeof(Id))) {
    require(from_.stride >= 1, "stride must be at least 1, got ", from_.stride);
    int64_t num_samples = 0, least_rows = 0;
    for (size_t batch = 0; batch < this->sizes_.size(); ++batch) {
        const int64_t size = this->sizes_[batch];
        first_sample_.push_back(num_samples);
        num_samples += size / from_.stride + (size % from_.stride > 0);
        least_rows += std::min(size, from_.stride);
        // Checksums know the batch, and go on from piece to piece.
        crcs_.push_back(SpillFile::checksum(nullptr, 0, static_cast<int64_t>(batch)));
    }
    if (num_samples != from_.num_samples)
        throw invalid("there must be ", num_samples, " samples, got ", from_.num_samples);
    if (from_.max_rows < least_rows)
        throw invalid("max_rows must be at least ", least_rows, ", got ", from_.max_rows);
}

template <class Id>
bool MissedOnDisk<Id>::next(int64_t num_rows_in_table, int num_threads, SortedRows<Id> &range) {
    if (num_left_ == 0) return false;
    const int64_t end = end_of_range(num_rows_in_table);
    const size_t size = this->sizes_.size();
    Id *const rows = reinterpret_cast<Id *>(memory_.data());
    range.rows = rows;
    range.begins.assign(size, 0);
    range.ends.assign(size, 0);
    int64_t num_rows = 0;
    for (size_t batch = 0; batch < size; ++batch) {
        range.begins[batch] = num_rows;
        num_rows += std::max<int64_t>(0, count_below(batch, end) - num_done_[batch]);
        range.ends[batch] = num_rows;
    }
    require(num_rows <= from_.max_rows, "samples must be ascending rows of the table");
    end_ = end;
    run_workers(num_threads, this->num_batches(), [&](TaskQueue &queue) {
        for (int64_t i; queue.take(i);) {
            const auto batch = static_cast<size_t>(i);
            const int64_t begin = range.begins[batch];
            range.ends[batch] =
                begin + read(batch, rows + begin, range.ends[batch] - begin, num_rows_in_table);
        }
    });
    const int64_t left = sum_of(this->sizes_) - sum_of(num_done_);
    if (left == num_left_)
        for (size_t batch = 0; batch < size; ++batch)
            if (num_done_[batch] < this->sizes_[batch]) fail(batch, "has no row where one was");
    num_left_ = left;
    return true;
}

// How many rows of a batch are below a row, rounded up to whole strides.
template <class Id>
int64_t MissedOnDisk<Id>::count_below(size_t batch, int64_t bound) const {
    const Id *const first = from_.samples + first_sample_[batch];
    const int64_t size = this->sizes_[batch];
    const Id *const end = first + (size + from_.stride - 1) / from_.stride;
    const auto below =
        std::partition_point(first, end, [&](Id row) { return int64_t{row} < bound; });
    return std::min(size, (below - first) * from_.stride);
}

// The largest row that no more rows may lie before, of those left, than there is memory for.
template <class Id>
int64_t MissedOnDisk<Id>::end_of_range(int64_t num_rows_in_table) const {
    const auto fits = [&](int64_t bound) {
        int64_t count = 0;
        for (size_t batch = 0; batch < num_done_.size(); ++batch)
            count += count_below(batch, bound) - num_done_[batch];
        return count <= from_.max_rows;
    };
    if (fits(num_rows_in_table)) return num_rows_in_table;
    int64_t low = end_, high = num_rows_in_table;
    while (high - low > 1) {
        const int64_t middle = low + (high - low) / 2;
        (fits(middle) ? low : high) = middle;
    }
    return low;
}

// Reads the next rows of a batch; returns how many of them belong to the range.
template <class Id>
int64_t MissedOnDisk<Id>::read(size_t batch, Id *rows, int64_t count, int64_t num_rows_in_table) {
    if (count == 0) return 0;
    constexpr auto id_bytes = static_cast<int64_t>(sizeof(Id));
    const int64_t begin = from_.begins[batch], size = this->sizes_[batch];
    from_.file.read_unchecked(rows, count * id_bytes, begin + num_done_[batch] * id_bytes);
    if (!do_ascend(rows, count, last_[batch], num_rows_in_table))
        fail(batch, "has rows that do not ascend, or are not of the table");
    const int64_t found =
        std::partition_point(rows, rows + count, [&](Id row) { return int64_t{row} < end_; }) -
        rows;
    if (found == 0) return 0;
    crcs_[batch] = crc32c(reinterpret_cast<const uint8_t *>(rows),
                          static_cast<size_t>(found * id_bytes), crcs_[batch]);
    num_done_[batch] += found;
    last_[batch] = rows[found - 1];
    if (num_done_[batch] == size)
        from_.file.check(crcs_[batch], from_.crcs[batch], size * id_bytes, begin,
                         static_cast<int64_t>(batch));
    return found;
}

template <class Id>
void MissedOnDisk<Id>::fail(size_t batch, const char *what) const {
    throw IoError(EBADMSG, text_of("batch ", batch, " is not what was written: it ", what),
                  from_.file.path());
}

template class MissedRanges<int32_t>;
template class MissedRanges<int64_t>;
template class MissedInMemory<int32_t>;
template class MissedInMemory<int64_t>;
template class MissedOnDisk<int32_t>;
template class MissedOnDisk<int64_t>;

}  // namespace gnnstore
