#include "kernels/packing/packed_read.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string>

#include "kernels/base/check_ids.h"
#include "kernels/base/errors.h"
#include "kernels/base/row_copy.h"
#include "kernels/base/stream_copy.h"
#include "kernels/packing/pack_pieces.h"

namespace gnnstore {
namespace {

// Packed rows come in order, which the processor sees by itself; where they go it does not.
constexpr int64_t written_rows_ahead = 8;
constexpr int64_t max_written_bytes_ahead = 1024;

class Scatter {
public:
    Scatter(const PackedChunk &chunk, uint8_t *out, int64_t out_bytes)
        : chunk_(chunk), row_bytes_(chunk.row_bytes), out_(out) {
        if (row_bytes_ % stream_line_bytes == 0 && should_stream(out, out_bytes, row_bytes_))
            stream_ = stream_copy();
    }

    // Bytes of the chunk from `place` on; rows at both ends may be in parts.
    void take(int64_t place, const uint8_t *bytes, int64_t num_bytes) const {
        const int64_t end = place + num_bytes;
        int64_t k = place / row_bytes_;
        if (const int64_t skipped = place - k * row_bytes_; skipped > 0) {
            const int64_t part = std::min(row_bytes_ - skipped, num_bytes);
            std::memcpy(target(k) + skipped, bytes, static_cast<size_t>(part));
            bytes += part;
            ++k;
        }
        const int64_t last = end / row_bytes_;
        for (; k < last; ++k, bytes += row_bytes_) {
            if (stream_ != nullptr) {
                stream_(target(k), bytes, row_bytes_);
            } else {
                if (k + written_rows_ahead < last) prefetch(target(k + written_rows_ahead));
                std::memcpy(target(k), bytes, static_cast<size_t>(row_bytes_));
            }
        }
        if (const int64_t part = end - last * row_bytes_; k == last && part > 0)
            std::memcpy(target(k), bytes, static_cast<size_t>(part));
    }

    void repeat() const {
        if (stream_ != nullptr) stream_fence();
        for (int64_t i = 0; i < chunk_.num_repeats; ++i)
            std::memcpy(out_ + chunk_.repeat_targets[i] * row_bytes_,
                        out_ + chunk_.repeat_sources[i] * row_bytes_,
                        static_cast<size_t>(row_bytes_));
    }

private:
    uint8_t *target(int64_t k) const { return out_ + chunk_.positions[k] * row_bytes_; }
    void prefetch(uint8_t *row) const {
        const int64_t length = std::min(row_bytes_, max_written_bytes_ahead);
        for (int64_t byte = 0; byte < length; byte += stream_line_bytes)
            __builtin_prefetch(row + byte, 1, 2);
    }

    const PackedChunk &chunk_;
    const int64_t row_bytes_;
    uint8_t *const out_;
    StreamCopy stream_ = nullptr;
};

std::string hexadecimal(uint32_t crc) {
    std::array<char, 9> text;
    std::snprintf(text.data(), text.size(), "%08x", crc);
    return text.data();
}

// Compares the pieces of a chunk as they come, in any order.
class PieceCheck {
public:
    PieceCheck(const PackedChunk &chunk, int64_t chunk_bytes)
        : chunk_(chunk), chunk_bytes_(chunk_bytes) {
        if (chunk.crcs == nullptr) return;
        check_piece_bytes(chunk.piece_bytes);
        const int64_t pieces = count_pieces(chunk_bytes, chunk.piece_bytes);
        require(chunk.num_crcs == pieces, "crcs must have ", pieces, " entries, one for each "
                "piece, got ", chunk.num_crcs);
    }

    // Passes the bytes of a read on, piece by piece: what has been compared is still in the
    // processor's cache when it is copied.
    template <class Take>
    void take(int64_t place, const uint8_t *bytes, int64_t num_bytes, const Take &pass_on) {
        if (chunk_.crcs == nullptr) return pass_on(place, bytes, num_bytes);
        while (num_bytes > 0) {
            const int64_t piece = place / chunk_.piece_bytes;
            const int64_t whole = std::min(chunk_.piece_bytes, chunk_bytes_ - place);
            if (place % chunk_.piece_bytes != 0 || whole > num_bytes) {
                is_cut_ = true;
                return;
            }
            const uint32_t found = crc32c(bytes, static_cast<size_t>(whole));
            if (found != chunk_.crcs[piece]) note(piece, found);
            pass_on(place, bytes, whole);
            place += whole;
            bytes += whole;
            num_bytes -= whole;
        }
    }

    void finish(const std::string &path) const {
        if (is_cut_)
            throw invalid("pieces of ", chunk_.piece_bytes, " bytes do not divide what the reader "
                          "reads at a time");
        if (num_damaged_ == 0) return;
        const int64_t begin = first_ * chunk_.piece_bytes;
        const int64_t end = std::min(begin + chunk_.piece_bytes, chunk_bytes_);
        std::string more;
        if (num_damaged_ > 1)
            more = "; " + std::to_string(num_damaged_ - 1) + " more of the chunk's " +
                   std::to_string(chunk_.num_crcs) + " pieces are damaged too";
        throw IoError(EBADMSG, text_of("bytes ", chunk_.offset + begin, " to ", chunk_.offset + end,
                                       " are not what was written: the crc32c is ",
                                       hexadecimal(found_), ", not ",
                                       hexadecimal(chunk_.crcs[first_]), more), path);
    }

private:
    void note(int64_t piece, uint32_t found) {
        if (num_damaged_ == 0 || piece < first_) {
            first_ = piece;
            found_ = found;
        }
        ++num_damaged_;
    }

    const PackedChunk &chunk_;
    const int64_t chunk_bytes_;
    int64_t num_damaged_ = 0, first_ = 0;
    uint32_t found_ = 0;  // of the first
    bool is_cut_ = false;
};

}  // namespace

ReadCounts read_packed_rows(Reader &reader, const FileSet &files, const PackedChunk &chunk,
                            uint8_t *out, int64_t out_bytes) {
    require(chunk.row_bytes >= 1, "row_bytes must be at least 1, got ", chunk.row_bytes);
    require(out_bytes % chunk.row_bytes == 0, "out must hold whole rows of ", chunk.row_bytes, " "
            "bytes, got ", out_bytes, " bytes");
    const int64_t num_out = out_bytes / chunk.row_bytes;
    check_ids(chunk.positions, chunk.num_rows, num_out);
    check_ids(chunk.repeat_targets, chunk.num_repeats, num_out);
    check_ids(chunk.repeat_sources, chunk.num_repeats, num_out);
    const int64_t num_bytes = checked_multiply(chunk.num_rows, chunk.row_bytes, "the packed rows");
    PieceCheck check(chunk, num_bytes);
    const Scatter scatter(chunk, out, out_bytes);
    const auto copy = [&](int64_t place, const uint8_t *bytes, int64_t size) {
        scatter.take(place, bytes, size);
    };
    ReadCounts counts = reader.stream(files, chunk.file, chunk.offset, num_bytes,
                                      [&](int64_t place, const uint8_t *bytes, int64_t size) {
                                          check.take(place, bytes, size, copy);
                                      });
    check.finish(files.file(static_cast<size_t>(chunk.file)).path());
    scatter.repeat();
    counts.rows_read = chunk.num_rows;
    return counts;
}

}  // namespace gnnstore
