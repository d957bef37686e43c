// Checks that the arguments of packing fit together: the threads that pack rely on it.
#pragma once

#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "kernels/base/errors.h"
#include "kernels/base/parallel.h"
#include "kernels/packing/pack.h"
#include "kernels/packing/pack_pieces.h"
#include "kernels/packing/pack_windows.h"

namespace gnnstore {

// Throws std::invalid_argument or std::out_of_range unless everything fits together.
template <class Id>
void check_packing(const FileSet &files, const RowLayout &layout, const MissedRanges<Id> &missed,
                   const std::vector<std::unique_ptr<PackFile>> &outputs,
                   const int64_t *chunk_files, const int64_t *chunk_offsets, int64_t num_crcs,
                   const PackOptions &options) {
    layout.check();
    check_num_threads(options.num_threads);
    require(files.begin(files.size()) >= layout.end_offset(), "the bodies add up to ",
            files.begin(files.size()), " bytes, but the last row ends at byte ",
            layout.end_offset());
    for (size_t i = 0; i < files.size(); ++i)
        require(files.begin(i) % layout.page_stride_bytes == 0 ||
                    files.begin(i) >= layout.end_offset(),
                "the bodies before " + files.file(i).path() + " do not hold whole pages");
    require(options.gap_bytes >= 0, "gap_bytes must not be negative");
    require(options.num_windows >= 1 && options.num_windows <= 1024, "num_windows must be between "
            "1 and 1024, got ", options.num_windows);
    const int64_t least = min_window_bytes(files, layout, options.gap_bytes);
    require(options.window_bytes >= least && options.window_bytes % PackFile::alignment == 0,
            "window_bytes must be a multiple of 4096 and at least ", least, ", got ",
            options.window_bytes);
    require(options.buffer_bytes >= PackFile::alignment &&
                options.buffer_bytes % PackFile::alignment == 0,
            "buffer_bytes must be a positive multiple of 4096, got " +
                std::to_string(options.buffer_bytes));
    require(options.num_spare_buffers >= 1, "num_spare_buffers must be at least 1");
    check_piece_bytes(options.piece_bytes);
    int64_t num_pieces = 0;
    for (int64_t i = 0; i < missed.num_batches(); ++i) {
        const std::string name = "batch " + std::to_string(i);
        const int64_t num_rows = missed.size(i);
        if (chunk_files[i] < 0 || chunk_files[i] >= static_cast<int64_t>(outputs.size()))
            throw out_of_range(name, ": file ", chunk_files[i], " is outside [0, ", outputs.size(),
                               ")");
        const int64_t num_bytes = checked_multiply(num_rows, layout.row_bytes, name.c_str());
        const int64_t end = checked_add(chunk_offsets[i], num_bytes, name.c_str());
        require(chunk_offsets[i] >= 0 && chunk_offsets[i] % PackFile::alignment == 0, name, " "
                "begins at byte ", chunk_offsets[i], ", not at a multiple of 4096");
        const int64_t room = outputs[static_cast<size_t>(chunk_files[i])]->num_bytes();
        require(end <= room, name + " ends behind the end of its file");
        num_pieces += count_pieces(num_bytes, options.piece_bytes);
    }
    require(num_crcs == num_pieces, "chunk_crcs must have ", num_pieces, " entries, one for each "
            "piece, got ", num_crcs);
}

}  // namespace gnnstore
