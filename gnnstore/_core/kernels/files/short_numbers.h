// Vectors of integers in fewer bytes: each as its difference to the number before it, in the bytes
// that it needs. The temporary data of a run has mostly small differences: neighbours that are new
// to a batch are numbered one after the other, and a node's in-edges lie together.
//
// int32 vector: the count of numbers and a flag for int64 in two words, two bits a number for its
// width, the differences, and zeros to a whole word behind them.
#pragma once

#include <cstdint>
#include <vector>

namespace gnnstore {

template <class T>
std::vector<int32_t> shorten(const T *numbers, int64_t count);

// The header of a short form.
struct ShortHead {
    int64_t count;
    bool is_wide;  // int64
};

// Both throw a std::invalid_argument unless the words are what `shorten` returns.
ShortHead read_short_head(const int32_t *words, int64_t num_words);
template <class T>
void restore(const int32_t *words, int64_t num_words, T *out);

}  // namespace gnnstore
