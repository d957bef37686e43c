// CRC-32C (Castagnoli), the checksum of the manifest and of Zarr's shard indexes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace gnnstore {

// The checksum of data appended to bytes whose checksum is `initial` (0: no bytes yet).
uint32_t crc32c(const uint8_t *data, size_t num_bytes, uint32_t initial = 0);

// The same from tables alone: what processors without a crc32c instruction run.
uint32_t crc32c_portable(const uint8_t *data, size_t num_bytes, uint32_t initial = 0);

// The same without folding: what processors without AVX-512 run.
uint32_t crc32c_streams(const uint8_t *data, size_t num_bytes, uint32_t initial = 0);

// "avx512", "sse4.2" or "portable": which of the three crc32c() runs on this machine.
const char *crc32c_implementation();

// One checksum per row: of row rows[i] of data, which must be there, to crcs[i].
void crc32c_rows(const uint8_t *data, const int32_t *rows, int64_t num_rows, int64_t row_bytes,
                 uint32_t *crcs);

// Continues crcs[i] by the bytes from begins[i] to ends[i] of data, which must be there.
void crc32c_ranges(const uint8_t *data, const int64_t *begins, const int64_t *ends,
                   int64_t num_ranges, uint32_t *crcs);

// One checksum per block of block_bytes; the last block may be shorter.
std::vector<uint32_t> crc32c_blocks(const uint8_t *data, int64_t num_bytes, int64_t block_bytes);
std::vector<uint32_t> crc32c_file(const std::string &path, int64_t block_bytes, int num_threads);

}  // namespace gnnstore
