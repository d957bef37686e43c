#include "kernels/rows/decode.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "kernels/base/check_ids.h"
#include "kernels/base/errors.h"
#include "kernels/base/parallel.h"
#include "kernels/base/processor.h"
#include "kernels/base/row_copy.h"

namespace gnnstore {

namespace {

struct ToFloat32 {
    using Out = float;
    static Out round(float value) { return value; }
};

struct ToFloat16 {
    using Out = uint16_t;
    // To nearest, ties to even, without a branch.
    static Out round(float value) {
        const int32_t bits = std::bit_cast<int32_t>(value), size = bits & 0x7fffffff;
        // What is too large for a half becomes infinite on the way.
        const float scaled = std::bit_cast<float>(size) * 0x1p+112f * 0x1p-110f;
        // A power of two next to which the last bit of a float is the half's.
        const int32_t exponent = std::max(size & 0x7f800000, 0x38800000) + 0x07800000;
        const auto sum = std::bit_cast<uint32_t>(std::bit_cast<float>(exponent) + scaled);
        const uint32_t sign = static_cast<uint32_t>(bits) >> 16 & 0x8000;
        return static_cast<Out>(sign | ((sum >> 13 & 0x7c00) + (sum & 0x0fff)));
    }
};

struct ToBfloat16 {
    using Out = uint16_t;
    static Out round(float value) {
        const auto bits = std::bit_cast<uint32_t>(value);
        return static_cast<Out>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
    }
};

template <class To>
struct Portable : To {
    using Out = typename To::Out;
    static void decode(const int8_t *__restrict row, const float *__restrict scales, int64_t width,
                       Out *__restrict out) {
        for (int64_t c = 0; c < width; ++c)
            out[c] = To::round(static_cast<float>(row[c]) * scales[c]);
    }
};

#if defined(GNNSTORE_X86_64)

// Other types gain nothing worth the code.
struct Float16ByF16c : ToFloat16 {
    __attribute__((target("avx2,f16c"))) static void decode(const int8_t *row, const float *scales,
                                                            int64_t width, Out *out) {
        int64_t c = 0;
        for (; c + 8 <= width; c += 8) {
            const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i *>(row + c));
            const __m256 values = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes));
            const __m256 products = _mm256_mul_ps(values, _mm256_loadu_ps(scales + c));
            _mm_storeu_si128(reinterpret_cast<__m128i *>(out + c),
                             _mm256_cvtps_ph(products, _MM_FROUND_TO_NEAREST_INT));
        }
        for (; c < width; ++c) out[c] = round(static_cast<float>(row[c]) * scales[c]);
    }
};

#endif

template <class By>
void decode_with(const uint8_t *rows, int64_t num_rows, const Decoding &decoding, uint8_t *bytes,
                 bool streams) {
    using Out = typename By::Out;
    const auto *row = reinterpret_cast<const int8_t *>(rows);
    const int64_t width = decoding.width;
    auto *out = reinterpret_cast<Out *>(bytes);
    if (!streams) {
        for (int64_t k = 0; k < num_rows; ++k, row += width, out += width)
            By::decode(row, decoding.scales, width, out);
        return;
    }
    // Joined to lines in a fraction of the first-level cache.
    constexpr int64_t buffer_bytes = 8192, capacity = buffer_bytes / int64_t{sizeof(Out)};
    alignas(stream_line_bytes) Out buffer[capacity];
    const StreamCopy copy = stream_copy();
    int64_t size = 0;
    for (int64_t k = 0; k < num_rows; ++k)
        for (int64_t done = 0; done < width;) {
            const int64_t part = std::min(width - done, capacity - size);
            By::decode(row, decoding.scales + done, part, buffer + size);
            row += part;
            done += part;
            size += part;
            if (size < capacity) continue;
            copy(reinterpret_cast<uint8_t *>(out), reinterpret_cast<const uint8_t *>(buffer),
                 buffer_bytes);
            out += capacity;
            size = 0;
        }
    std::memcpy(out, buffer, static_cast<size_t>(size) * sizeof(Out));
    stream_fence();
}

}  // namespace

void Decoding::check(int64_t row_bytes, const uint8_t *out) const {
    require(width == row_bytes, "there are ", width, " scales, and rows of ", row_bytes, " bytes");
    const auto place = reinterpret_cast<uintptr_t>(out);
    const uintptr_t size = type == DecodedType::float32 ? sizeof(float) : sizeof(uint16_t);
    require(place % size == 0, "out is not aligned to a number");
}

DecodeRows choose_decode(DecodedType type) {
    switch (type) {
        case DecodedType::float32: return decode_with<Portable<ToFloat32>>;
        case DecodedType::bfloat16: return decode_with<Portable<ToBfloat16>>;
        case DecodedType::float16: break;
    }
#if defined(GNNSTORE_X86_64)
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c"))
        return decode_with<Float16ByF16c>;
#endif
    return decode_with<Portable<ToFloat16>>;
}

void decode_rows(const uint8_t *rows, int64_t num_bytes, const Decoding &decoding, uint8_t *out,
                 int64_t out_bytes, int num_threads) {
    const int64_t width = decoding.width, row_bytes = decoding.row_bytes();
    decoding.check(width, out);
    require(width >= 1 && num_bytes % width == 0, num_bytes, " bytes are not rows of ", width);
    const int64_t num_rows = num_bytes / width;
    require(out_bytes == num_rows * row_bytes, "out must hold ", num_rows * row_bytes,
            " bytes, got ", out_bytes);
    if (overlap(out, out_bytes, rows, num_bytes)) throw invalid("out overlaps the rows");
    check_num_threads(num_threads);
    const bool streams = should_stream(out, out_bytes, row_bytes);
    const DecodeRows decode = choose_decode(decoding.type);
    const int64_t task_rows = rows_per_task(row_bytes);
    const int64_t num_tasks = num_rows / task_rows + (num_rows % task_rows != 0);
    run_workers(num_threads, num_tasks, [&](TaskQueue &queue) {
        for (int64_t task; queue.take(task);) {
            const int64_t begin = task * task_rows;
            const int64_t size = std::min(num_rows - begin, task_rows);
            decode(rows + begin * width, size, decoding, out + begin * row_bytes, streams);
        }
    });
}

}  // namespace gnnstore
