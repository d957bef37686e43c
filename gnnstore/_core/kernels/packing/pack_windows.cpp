#include "kernels/packing/pack_windows.h"

#include <algorithm>
#include <limits>

#include "kernels/base/errors.h"

namespace gnnstore {
namespace {

// Most disks and file systems move blocks of this size, whatever they are asked for.
constexpr int64_t min_unit_bytes = 4096;
constexpr int64_t no_row = std::numeric_limits<int64_t>::max();

int64_t unit_of(const FileSet &files) { return std::max(min_unit_bytes, files.alignment()); }

int64_t pages_per_chunk_of(const RowLayout &layout) {
    return std::max<int64_t>(1, pack_chunk_bytes / layout.page_stride_bytes);
}

}  // namespace

int64_t chunk_bytes_of(const RowLayout &layout) {
    return pages_per_chunk_of(layout) * layout.page_stride_bytes;
}

int64_t min_window_bytes(const FileSet &files, const RowLayout &layout, int64_t gap_bytes) {
    // A chunk begins and ends within a unit, and may be joined to the one before.
    const int64_t least = chunk_bytes_of(layout) + 2 * unit_of(files);
    return checked_add(least, gap_bytes, "the least window");
}

template <class Id>
WindowPlan<Id>::WindowPlan(const FileSet &files, const RowLayout &layout,
                           const SortedRows<Id> &rows, int64_t gap_bytes, int64_t window_bytes)
    : files_(files),
      layout_(layout),
      rows_(rows),
      gap_bytes_(gap_bytes),
      window_bytes_(window_bytes),
      unit_(unit_of(files)),
      chunk_bytes_(chunk_bytes_of(layout)),
      pages_per_chunk_(pages_per_chunk_of(layout)),
      next_(rows.begins),
      heads_(rows.begins.size(), no_row),
      marks_(static_cast<size_t>(chunk_bytes_ / unit_ + 3)) {
    for (size_t batch = 0; batch < heads_.size(); ++batch)
        if (next_[batch] < rows_.ends[batch]) heads_[batch] = rows_.rows[next_[batch]];
}

template <class Id>
bool WindowPlan<Id>::next(PackWindow &window) {
    window.extents.clear();
    window.num_bytes = 0;
    while (window.num_bytes + chunk_bytes_ + 2 * unit_ + gap_bytes_ <= window_bytes_) {
        int64_t first_row = no_row;
        for (const int64_t head : heads_) first_row = std::min(first_row, head);
        if (first_row == no_row) break;
        add_chunk(first_row, window);
    }
    return window.num_bytes > 0;
}

// Whole pages of one file, from the first page that is needed.
template <class Id>
void WindowPlan<Id>::add_chunk(int64_t first_row, PackWindow &window) {
    const int64_t page = first_row / layout_.rows_per_page;
    const int64_t chunk_begin = page * layout_.page_stride_bytes;
    while (files_.begin(static_cast<size_t>(file_) + 1) <= chunk_begin) ++file_;
    const int64_t file_begin = files_.begin(static_cast<size_t>(file_));
    const int64_t bytes_left = files_.begin(static_cast<size_t>(file_) + 1) - chunk_begin;
    const int64_t num_pages =
        std::clamp<int64_t>(bytes_left / layout_.page_stride_bytes, 1, pages_per_chunk_);
    window.end_row = (page + num_pages) * layout_.rows_per_page;

    // Units are the file's, by which alignment goes.
    const int64_t first_unit = (chunk_begin - file_begin) / unit_;
    const int64_t marks_begin = file_begin + first_unit * unit_;
    std::fill(marks_.begin(), marks_.end(), uint8_t{0});
    for (size_t batch = 0; batch < heads_.size(); ++batch) {
        if (heads_[batch] >= window.end_row) continue;
        int64_t k = next_[batch];
        const int64_t end = rows_.ends[batch];
        for (; k < end && rows_.rows[k] < window.end_row; ++k) {
            const int64_t offset = layout_.offset(rows_.rows[k]) - marks_begin;
            const int64_t last = (offset + layout_.row_bytes - 1) / unit_;
            for (int64_t unit = offset / unit_; unit <= last; ++unit)
                marks_[static_cast<size_t>(unit)] = 1;
        }
        next_[batch] = k;
        heads_[batch] = k < end ? static_cast<int64_t>(rows_.rows[k]) : no_row;
    }
    const auto size = static_cast<int64_t>(marks_.size());
    for (int64_t unit = 0; unit < size;) {
        if (marks_[static_cast<size_t>(unit)] == 0) {
            ++unit;
            continue;
        }
        int64_t end = unit;
        while (end < size && marks_[static_cast<size_t>(end)] != 0) ++end;
        add(marks_begin + unit * unit_, marks_begin + end * unit_, window);
        unit = end;
    }
}

// Joins bytes to the last extent where little lies between them.
template <class Id>
void WindowPlan<Id>::add(int64_t begin, int64_t end, PackWindow &window) const {
    if (!window.extents.empty()) {
        PackExtent &last = window.extents.back();
        if (last.file == file_ && begin - last.end <= gap_bytes_) {
            window.num_bytes += std::max(end, last.end) - last.end;
            last.end = std::max(end, last.end);
            return;
        }
    }
    window.extents.push_back({begin, end, window.num_bytes, file_});
    window.num_bytes += end - begin;
}

template class WindowPlan<int32_t>;
template class WindowPlan<int64_t>;

}  // namespace gnnstore
