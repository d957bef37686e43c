#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>

#include "kernels/base/errors.h"
#include "kernels/base/parallel.h"
#include "kernels/files/files.h"
#include "kernels/rows/rows.h"

namespace gnnstore {
namespace {

// Large enough for a disk's full bandwidth, small enough that a piece read into scratch
// memory is still in the second-level cache when its rows are copied out.
constexpr int64_t piece_bytes = 1 << 20;

// A run of whole pages of one file.
struct Piece {
    size_t file;
    int64_t file_offset;
    int64_t num_bytes;   // may end before the last page's padding
    int64_t first_page;  // of the table
};

std::vector<Piece> split_into_pieces(const std::vector<std::string> &paths,
                                     const std::vector<int64_t> &body_bytes,
                                     const RowLayout &layout) {
    check_bodies(paths, body_bytes);
    const int64_t stride = layout.page_stride_bytes;
    const int64_t step = std::max<int64_t>(1, piece_bytes / stride) * stride;
    const int64_t end_offset = layout.end_offset();
    std::vector<Piece> pieces;
    int64_t total = 0;
    for (size_t i = 0; i < paths.size(); ++i) {
        if (total % stride != 0 && body_bytes[i] > 0)
            throw invalid("the bodies before ", paths[i], " add up to ", total, " bytes, not to "
                          "whole pages of ", stride);
        // Padding behind the last row is not read: the file need not even have it.
        const int64_t useful = std::clamp<int64_t>(end_offset - total, 0, body_bytes[i]);
        for (int64_t offset = 0; offset < useful; offset += step)
            pieces.push_back(
                {i, offset, std::min(step, useful - offset), (total + offset) / stride});
        total = checked_add(total, body_bytes[i], "the sum of body_bytes");
    }
    require(total >= end_offset, "the bodies add up to ", total, " bytes, but the last row ends at "
            "byte ", end_offset);
    return pieces;
}

}  // namespace

void read_pages(const std::vector<std::string> &paths, const std::vector<int64_t> &body_bytes,
                const RowLayout &layout, uint8_t *out, int64_t out_bytes, int num_threads) {
    layout.check();
    check_num_threads(num_threads);
    layout.check_output(layout.num_rows, out_bytes);
    const std::vector<Piece> pieces = split_into_pieces(paths, body_bytes, layout);
    run_workers(num_threads, static_cast<int64_t>(pieces.size()), [&](TaskQueue &queue) {
        std::optional<File> file;  // the latest one: a worker's pieces come in order
        size_t open_index = 0;
        std::unique_ptr<uint8_t[]> scratch;
        int64_t scratch_bytes = 0;
        for (int64_t task; queue.take(task);) {
            const Piece &piece = pieces[static_cast<size_t>(task)];
            if (!file || open_index != piece.file) {
                file.emplace(paths[piece.file]);
                file->advise_sequential();
                open_index = piece.file;
            }
            int64_t row = piece.first_page * layout.rows_per_page;
            if (layout.is_dense()) {
                file->read_exactly(out + row * layout.row_bytes, piece.num_bytes,
                                   piece.file_offset);
                continue;
            }
            if (scratch_bytes < piece.num_bytes) {
                scratch = std::make_unique_for_overwrite<uint8_t[]>(
                    static_cast<size_t>(piece.num_bytes));
                scratch_bytes = piece.num_bytes;
            }
            file->read_exactly(scratch.get(), piece.num_bytes, piece.file_offset);
            for (int64_t page = 0; page < piece.num_bytes; page += layout.page_stride_bytes) {
                const int64_t rows = std::min(layout.rows_per_page, layout.num_rows - row);
                std::memcpy(out + row * layout.row_bytes, scratch.get() + page,
                            static_cast<size_t>(rows * layout.row_bytes));
                row += rows;
            }
        }
    });
}

}  // namespace gnnstore
