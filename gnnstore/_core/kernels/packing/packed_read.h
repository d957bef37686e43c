// The rows of a batch, read from where they were packed to their places in the batch.
#pragma once

#include <cstdint>

#include "kernels/reading/row_reader.h"

namespace gnnstore {

// A batch's chunk of packed rows, and their positions in the batch (see pack_index.h).
struct PackedChunk {
    int64_t file, offset;  // a multiple of PackFile::alignment
    int64_t row_bytes;
    const int32_t *positions;  // of each packed row
    int64_t num_rows;
    const int32_t *repeat_targets;  // positions that get the row of repeat_sources
    const int32_t *repeat_sources;
    int64_t num_repeats;
    // The checksums of its pieces of piece_bytes each (see pack_pieces.h); null: it has none.
    const uint32_t *crcs = nullptr;
    int64_t num_crcs = 0, piece_bytes = 0;
};

// Writes packed row k to out + positions[k] * row_bytes, then copies what is repeated. Nothing
// is written when a position lies outside of `out`. Throws IoError, EBADMSG, naming the first
// piece that has another checksum; `out` may have been written then. Pieces must divide what the
// reader reads at a time.
ReadCounts read_packed_rows(Reader &reader, const FileSet &files, const PackedChunk &chunk,
                            uint8_t *out, int64_t out_bytes);

}  // namespace gnnstore
