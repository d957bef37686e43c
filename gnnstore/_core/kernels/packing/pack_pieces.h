// A chunk of packed rows has a CRC-32C for each piece of so many bytes. With one for all of it,
// reads could be compared only in their order, and a damaged byte would be anywhere in it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>

#include "kernels/base/errors.h"
#include "kernels/files/crc32c.h"

namespace gnnstore {

inline void check_piece_bytes(int64_t piece_bytes) {
    require(piece_bytes >= 1, "piece_bytes must be at least 1, got ", piece_bytes);
}

inline int64_t count_pieces(int64_t chunk_bytes, int64_t piece_bytes) {
    return chunk_bytes / piece_bytes + (chunk_bytes % piece_bytes != 0);
}

// Adds bytes that begin at `place` of a chunk to the checksums of its pieces, which are 0 at first.
inline void extend_pieces(uint32_t *crcs, int64_t piece_bytes, int64_t place, const uint8_t *bytes,
                          int64_t num_bytes) {
    while (num_bytes > 0) {
        const int64_t part = std::min(num_bytes, piece_bytes - place % piece_bytes);
        uint32_t &crc = crcs[place / piece_bytes];
        crc = crc32c(bytes, static_cast<size_t>(part), crc);
        place += part;
        bytes += part;
        num_bytes -= part;
    }
}

}  // namespace gnnstore
