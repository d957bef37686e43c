#include "kernels/base/stream_copy.h"

#include "kernels/base/processor.h"

namespace gnnstore {

#if defined(GNNSTORE_X86_64)

namespace {

__attribute__((target("avx512f"))) void stream_copy_avx512(uint8_t *out, const uint8_t *in,
                                                           int64_t num_bytes) {
    for (int64_t i = 0; i < num_bytes; i += 64)
        _mm512_stream_si512(reinterpret_cast<__m512i *>(out + i), _mm512_loadu_si512(in + i));
}

__attribute__((target("avx2"))) void stream_copy_avx2(uint8_t *out, const uint8_t *in,
                                                      int64_t num_bytes) {
    for (int64_t i = 0; i < num_bytes; i += 32)
        _mm256_stream_si256(reinterpret_cast<__m256i *>(out + i),
                            _mm256_loadu_si256(reinterpret_cast<const __m256i *>(in + i)));
}

}  // namespace

StreamCopy stream_copy() {
    static const StreamCopy best = __builtin_cpu_supports("avx512f") ? stream_copy_avx512
                                   : __builtin_cpu_supports("avx2")  ? stream_copy_avx2
                                                                     : nullptr;
    return best;
}

void stream_fence() { _mm_sfence(); }

#else

StreamCopy stream_copy() { return nullptr; }
void stream_fence() {}

#endif

}  // namespace gnnstore
