// Philox4x64-10, the counter-based generator behind every random choice in the core.
//
// A draw is a pure function of (counter, key), so any thread can compute any draw and
// neither chunking nor scheduling changes a result. The outputs equal
// numpy.random.Philox's for the same counter and key; NumPy increments its counter before
// the first block, so Philox(counter=c - 1, key=k).random_raw(4) is the block of c.
// (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3", SC 2011.)
#pragma once

#include <cstdint>

namespace gnnstore {

// The full 128-bit product of a and b: returns the high half, stores the low half.
inline uint64_t multiply_high(uint64_t a, uint64_t b, uint64_t &low) {
    __extension__ using uint128 = unsigned __int128;
    const uint128 product = static_cast<uint128>(a) * b;
    low = static_cast<uint64_t>(product);
    return static_cast<uint64_t>(product >> 64);
}

inline void philox4x64_10(uint64_t out[4], const uint64_t counter[4], const uint64_t key[2]) {
    uint64_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3];
    uint64_t k0 = key[0], k1 = key[1];
    for (int round = 0; round < 10; ++round) {
        uint64_t low0, low1;
        const uint64_t high0 = multiply_high(0xD2E7470EE14C6C93u, c0, low0);
        const uint64_t high1 = multiply_high(0xCA5A826395121157u, c2, low1);
        c0 = high1 ^ c1 ^ k0;
        c1 = low1;
        c2 = high0 ^ c3 ^ k1;
        c3 = low0;
        k0 += 0x9E3779B97F4A7C15u;  // the golden ratio
        k1 += 0xBB67AE8584CAA73Bu;  // sqrt(3) - 1
    }
    out[0] = c0;
    out[1] = c1;
    out[2] = c2;
    out[3] = c3;
}

}  // namespace gnnstore
