// Rows of int8 whose columns have scales, as the numbers that they stand for: one multiplication in
// float32, then one rounding, so that every way to a batch has the same bits.
#pragma once

#include <cstdint>

namespace gnnstore {

enum class DecodedType { float32, float16, bfloat16 };

struct Decoding {
    const float *scales;  // normal and finite, one for each byte of a row
    int64_t width;
    DecodedType type;

    int64_t row_bytes() const { return width * (type == DecodedType::float32 ? 4 : 2); }
    // Throws unless there is a scale for each byte of rows, and `out` is aligned for the numbers.
    void check(int64_t row_bytes, const uint8_t *out) const;
};

// Decodes rows that lie one behind the other, around the caches if they are to be streamed.
using DecodeRows = void (*)(const uint8_t *rows, int64_t num_rows, const Decoding &decoding,
                            uint8_t *out, bool streams);

DecodeRows choose_decode(DecodedType type);

void decode_rows(const uint8_t *rows, int64_t num_bytes, const Decoding &decoding, uint8_t *out,
                 int64_t out_bytes, int num_threads);

}  // namespace gnnstore
