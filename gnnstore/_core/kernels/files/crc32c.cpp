#include "kernels/files/crc32c.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>

#include "kernels/base/errors.h"
#include "kernels/base/parallel.h"
#include "kernels/base/processor.h"
#include "kernels/base/row_copy.h"
#include "kernels/files/files.h"

namespace gnnstore {
namespace {

constexpr uint32_t polynomial = 0x82F63B78u;  // Castagnoli's, bits reversed

using ByteTable = std::array<uint32_t, 256>;

// tables[k][b]: the checksum register after byte b and then k zero bytes.
constexpr std::array<ByteTable, 8> make_byte_tables() {
    std::array<ByteTable, 8> tables{};
    for (uint32_t byte = 0; byte < 256; ++byte) {
        uint32_t crc = byte;
        for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) ? polynomial : 0);
        tables[0][byte] = crc;
    }
    for (size_t k = 1; k < 8; ++k)
        for (size_t byte = 0; byte < 256; ++byte) {
            const uint32_t crc = tables[k - 1][byte];
            tables[k][byte] = (crc >> 8) ^ tables[0][crc & 0xFF];
        }
    return tables;
}

constexpr std::array<ByteTable, 8> byte_tables = make_byte_tables();

#if defined(GNNSTORE_X86_64)

uint64_t load_u64(const uint8_t *p) {
    uint64_t value;
    std::memcpy(&value, p, sizeof value);
    return value;
}

// The register of three streams of `length` bytes can be advanced at once; to join them,
// a stream's register must be moved past the bytes that follow it. Moving past `length`
// zero bytes is linear over GF(2), so four 256-entry tables, one per register byte, do it.
class ZeroShift {
public:
    explicit ZeroShift(size_t length) {
        std::array<uint32_t, 32> column;  // the image of each single bit
        for (size_t bit = 0; bit < 32; ++bit) {
            uint32_t crc = 1u << bit;
            for (size_t i = 0; i < length; ++i) crc = (crc >> 8) ^ byte_tables[0][crc & 0xFF];
            column[bit] = crc;
        }
        for (size_t k = 0; k < 4; ++k)
            for (size_t byte = 0; byte < 256; ++byte) {
                uint32_t crc = 0;
                for (size_t bit = 0; bit < 8; ++bit)
                    if (byte >> bit & 1) crc ^= column[8 * k + bit];
                tables_[k][byte] = crc;
            }
    }

    uint32_t operator()(uint32_t crc) const {
        return tables_[0][crc & 0xFF] ^ tables_[1][crc >> 8 & 0xFF] ^
               tables_[2][crc >> 16 & 0xFF] ^ tables_[3][crc >> 24];
    }

private:
    std::array<ByteTable, 4> tables_;
};

// Consumes as many groups of three `length`-byte streams as there are. The instruction
// has a latency of three cycles and a throughput of one, hence three streams.
template <size_t length>
__attribute__((target("sse4.2"))) uint32_t three_streams(uint32_t crc, const uint8_t *&data,
                                                         size_t &num_bytes,
                                                         const ZeroShift &shift) {
    while (num_bytes >= 3 * length) {
        uint64_t a = crc, b = 0, c = 0;
        for (size_t i = 0; i < length; i += 8) {
            a = _mm_crc32_u64(a, load_u64(data + i));
            b = _mm_crc32_u64(b, load_u64(data + length + i));
            c = _mm_crc32_u64(c, load_u64(data + 2 * length + i));
        }
        crc = shift(shift(static_cast<uint32_t>(a)) ^ static_cast<uint32_t>(b)) ^
              static_cast<uint32_t>(c);
        data += 3 * length;
        num_bytes -= 3 * length;
    }
    return crc;
}

// x^n modulo the polynomial, as a factor: bit i is the coefficient of x^(63 - i).
constexpr uint64_t power_of_x(int n) {
    uint32_t power = 1u << 31;
    for (int i = 0; i < n; ++i) power = (power >> 1) ^ ((power & 1) ? polynomial : 0);
    return static_cast<uint64_t>(power) << 32;
}

// Multiplies without carries what is left of 256 bytes by what it stands before the next 256:
// modulo the polynomial, bytes and their image that far behind are the same. In the processor's
// cache 70 GB/s, where three streams reach 20. Needs 512 bytes or more; leaves less than 256.
__attribute__((target("avx512f,vpclmulqdq,sse4.2"))) uint32_t fold(uint32_t crc,
                                                                   const uint8_t *&data,
                                                                   size_t &num_bytes) {
    constexpr int group_bytes = 256, lines = 4;
    // Memory is read ahead of the processor's own guess: 18 GB/s of what is in no cache, 9
    // without.
    constexpr int ahead_bytes = 4096;
    // The lower half of 128 bits comes first: it stands before 64 bits more. The product of two
    // reversed factors of 64 bits is reversed in 127, so that each lacks a factor of x.
    constexpr uint64_t first = power_of_x(8 * group_bytes + 63);
    constexpr uint64_t second = power_of_x(8 * group_bytes - 1);
    const auto factors = _mm512_set4_epi64(second, first, second, first);
    __m512i left[lines];
    for (int k = 0; k < lines; ++k) left[k] = _mm512_loadu_si512(data + 64 * k);
    const auto begun = _mm_cvtsi32_si128(static_cast<int>(crc));
    left[0] = _mm512_xor_si512(left[0], _mm512_zextsi128_si512(begun));
    for (;;) {
        data += group_bytes;
        num_bytes -= group_bytes;
        if (num_bytes < group_bytes) break;
        for (int k = 0; k < lines; ++k) {
            _mm_prefetch(reinterpret_cast<const char *>(data + ahead_bytes + 64 * k), _MM_HINT_T0);
            const auto a = _mm512_clmulepi64_epi128(left[k], factors, 0x00);
            const auto b = _mm512_clmulepi64_epi128(left[k], factors, 0x11);
            left[k] = _mm512_xor_si512(_mm512_xor_si512(a, b), _mm512_loadu_si512(data + 64 * k));
        }
    }
    alignas(64) uint8_t bytes[group_bytes];
    for (int k = 0; k < lines; ++k) _mm512_store_si512(bytes + 64 * k, left[k]);
    uint64_t folded = 0;
    for (int i = 0; i < group_bytes; i += 8) folded = _mm_crc32_u64(folded, load_u64(bytes + i));
    return static_cast<uint32_t>(folded);
}

__attribute__((target("sse4.2"))) uint32_t crc32c_sse42(const uint8_t *data, size_t num_bytes,
                                                        uint32_t initial) {
    // Long streams make the joins (8 dependent table look-ups) vanish; short ones serve
    // what the long ones leave over.
    static const ZeroShift long_shift(4096), short_shift(256);
    uint32_t crc = ~initial;
    crc = three_streams<4096>(crc, data, num_bytes, long_shift);
    crc = three_streams<256>(crc, data, num_bytes, short_shift);
    for (; num_bytes >= 8; data += 8, num_bytes -= 8)
        crc = static_cast<uint32_t>(_mm_crc32_u64(crc, load_u64(data)));
    for (; num_bytes > 0; ++data, --num_bytes) crc = _mm_crc32_u8(crc, *data);
    return ~crc;
}

// Three rows at once, for the same reason as three streams: one of 512 bytes alone is limited by
// the instruction's latency (4 GB/s instead of 12).
__attribute__((target("sse4.2"))) void three_rows(const uint8_t *const *rows, size_t num_bytes,
                                                  uint32_t *crcs) {
    uint64_t a = ~0u, b = ~0u, c = ~0u;
    size_t i = 0;
    for (; i + 8 <= num_bytes; i += 8) {
        a = _mm_crc32_u64(a, load_u64(rows[0] + i));
        b = _mm_crc32_u64(b, load_u64(rows[1] + i));
        c = _mm_crc32_u64(c, load_u64(rows[2] + i));
    }
    for (; i < num_bytes; ++i) {
        a = _mm_crc32_u8(static_cast<uint32_t>(a), rows[0][i]);
        b = _mm_crc32_u8(static_cast<uint32_t>(b), rows[1][i]);
        c = _mm_crc32_u8(static_cast<uint32_t>(c), rows[2][i]);
    }
    crcs[0] = ~static_cast<uint32_t>(a);
    crcs[1] = ~static_cast<uint32_t>(b);
    crcs[2] = ~static_cast<uint32_t>(c);
}

bool has_instruction() {
    static const bool present = __builtin_cpu_supports("sse4.2");
    return present;
}

bool can_fold() {
    static const bool present =
        __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("vpclmulqdq");
    return present;
}

// Below this three streams are as fast.
constexpr size_t min_folded_bytes = 1024;

#endif

}  // namespace

uint32_t crc32c_portable(const uint8_t *data, size_t num_bytes, uint32_t initial) {
    uint32_t crc = ~initial;
    for (; num_bytes >= 8; data += 8, num_bytes -= 8) {
        uint32_t next = 0;
        for (size_t i = 0; i < 4; ++i)
            next ^= byte_tables[7 - i][data[i] ^ (crc >> (8 * i) & 0xFF)] ^
                    byte_tables[3 - i][data[4 + i]];
        crc = next;
    }
    for (; num_bytes > 0; ++data, --num_bytes)
        crc = (crc >> 8) ^ byte_tables[0][(crc ^ *data) & 0xFF];
    return ~crc;
}

uint32_t crc32c_streams(const uint8_t *data, size_t num_bytes, uint32_t initial) {
#if defined(GNNSTORE_X86_64)
    if (has_instruction()) return crc32c_sse42(data, num_bytes, initial);
#endif
    return crc32c_portable(data, num_bytes, initial);
}

uint32_t crc32c(const uint8_t *data, size_t num_bytes, uint32_t initial) {
#if defined(GNNSTORE_X86_64)
    if (num_bytes >= min_folded_bytes && has_instruction() && can_fold())
        initial = ~fold(~initial, data, num_bytes);
#endif
    return crc32c_streams(data, num_bytes, initial);
}

const char *crc32c_implementation() {
#if defined(GNNSTORE_X86_64)
    if (has_instruction() && can_fold()) return "avx512";
    if (has_instruction()) return "sse4.2";
#endif
    return "portable";
}

namespace {

int64_t count_blocks(int64_t num_bytes, int64_t block_bytes) {
    require(block_bytes >= 1, "block_bytes must be at least 1, got ", block_bytes);
    return num_bytes / block_bytes + (num_bytes % block_bytes != 0);
}

}  // namespace

void crc32c_rows(const uint8_t *data, const int32_t *rows, int64_t num_rows, int64_t row_bytes,
                 uint32_t *crcs) {
    int64_t i = 0;
#if defined(GNNSTORE_X86_64)
    if (has_instruction()) {
        constexpr int64_t ahead = 6;  // rows come in any order, which the processor cannot foresee
        for (; i + 3 <= num_rows; i += 3) {
            const uint8_t *three[3];
            for (int64_t k = 0; k < 3; ++k) {
                three[k] = data + rows[i + k] * row_bytes;
                if (i + k + ahead < num_rows)
                    prefetch_row(data + rows[i + k + ahead] * row_bytes, row_bytes);
            }
            three_rows(three, static_cast<size_t>(row_bytes), crcs + i);
        }
    }
#endif
    for (; i < num_rows; ++i)
        crcs[i] = crc32c(data + rows[i] * row_bytes, static_cast<size_t>(row_bytes));
}

void crc32c_ranges(const uint8_t *data, const int64_t *begins, const int64_t *ends,
                   int64_t num_ranges, uint32_t *crcs) {
    for (int64_t i = 0; i < num_ranges; ++i)
        crcs[i] = crc32c(data + begins[i], static_cast<size_t>(ends[i] - begins[i]), crcs[i]);
}

std::vector<uint32_t> crc32c_blocks(const uint8_t *data, int64_t num_bytes, int64_t block_bytes) {
    std::vector<uint32_t> checksums(static_cast<size_t>(count_blocks(num_bytes, block_bytes)));
    int64_t offset = 0;
    for (uint32_t &checksum : checksums) {
        const int64_t length = std::min(block_bytes, num_bytes - offset);
        checksum = crc32c(data + offset, static_cast<size_t>(length));
        offset += length;
    }
    return checksums;
}

std::vector<uint32_t> crc32c_file(const std::string &path, int64_t block_bytes, int num_threads) {
    // Small enough that a piece is still in the second-level cache when it is summed.
    constexpr int64_t piece_bytes = 256 << 10;
    // A task is a run of whole blocks, long enough for the kernel's read-ahead.
    constexpr int64_t task_bytes = 4 << 20;
    check_num_threads(num_threads);
    const File file(path);
    file.advise_sequential();
    const int64_t num_bytes = file.size();
    const int64_t num_blocks = count_blocks(num_bytes, block_bytes);
    std::vector<uint32_t> checksums(static_cast<size_t>(num_blocks));
    const int64_t blocks_per_task = std::max<int64_t>(1, task_bytes / block_bytes);
    const int64_t num_tasks = num_blocks / blocks_per_task + (num_blocks % blocks_per_task != 0);
    run_workers(num_threads, num_tasks, [&](TaskQueue &queue) {
        const auto buffer = std::make_unique_for_overwrite<uint8_t[]>(piece_bytes);
        for (int64_t task; queue.take(task);) {
            const int64_t first = task * blocks_per_task;
            const int64_t last = std::min(num_blocks, first + blocks_per_task);
            for (int64_t block = first; block < last; ++block) {
                const int64_t begin = block * block_bytes;
                const int64_t length = std::min(block_bytes, num_bytes - begin);
                uint32_t checksum = 0;
                for (int64_t done = 0; done < length; done += piece_bytes) {
                    const int64_t piece = std::min(piece_bytes, length - done);
                    file.read_exactly(buffer.get(), piece, begin + done);
                    checksum = crc32c(buffer.get(), static_cast<size_t>(piece), checksum);
                }
                checksums[static_cast<size_t>(block)] = checksum;
            }
        }
    });
    return checksums;
}

}  // namespace gnnstore
