// Batched packing (DiskGNN, section 5.2): the rows that each batch of a superbatch misses are
// written one behind the other, while the table is read once, in order.
//
// One thread plans windows of the table and keeps reads of them in flight; num_threads threads
// take the windows in order and append each row to the buffers of the batches that need it, so
// that a batch's rows come in the order of the table; and some more write full buffers away.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/packing/pack_file.h"
#include "kernels/packing/pack_ranges.h"
#include "kernels/reading/read_engine.h"
#include "kernels/reading/row_reader.h"
#include "kernels/rows/rows.h"

namespace gnnstore {

struct PackOptions {
    EngineKind kind = EngineKind::io_uring;
    int queue_depth = 128;
    int num_reading_threads = 32;  // of an engine that has threads
    int num_threads = 1;           // that copy rows
    int64_t gap_bytes = 0;         // rows this near are fetched by one read
    int64_t num_windows = 16;      // being read or copied
    int64_t window_bytes = 0;      // of each
    int64_t buffer_bytes = 0;      // of each batch's buffer: whole blocks of PackFile
    int64_t num_spare_buffers = 0;  // being written; at least 1
    int64_t piece_bytes = 0;        // of a chunk, that a checksum is of
};

// Progress of packing, shared with the thread that waits for it.
struct PackProgress {
    int64_t bytes_done = 0;  // read or handed over to be written
    int64_t stop = 0;        // not 0: give up
};

struct PackCounts {
    int64_t reads = 0, bytes_read = 0;
    int64_t writes = 0, bytes_written = 0;
    int64_t rows_packed = 0;
};

// Packs the rows of a table, range by range, with buffers that are filled on from range to range:
// the rows of batch i go to file `chunk_files[i]`, from byte `chunk_offsets[i]` on, a multiple of
// PackFile::alignment; the last block is filled up with zeros. `crcs` become the checksums of the
// pieces of each batch's rows (see pack_pieces.h), one batch behind the other: of what was to be
// written, so that a read shows whether it was. Throws what `missed` throws, and IoError (ECANCELED
// if progress->stop was set). Nothing is in flight afterwards.
template <class Id>
PackCounts pack_rows(const FileSet &files, const RowLayout &layout, MissedRanges<Id> &missed,
                     const std::vector<std::unique_ptr<PackFile>> &outputs,
                     const int64_t *chunk_files, const int64_t *chunk_offsets, uint32_t *crcs,
                     int64_t num_crcs, const PackOptions &options, PackProgress *progress);

}  // namespace gnnstore
