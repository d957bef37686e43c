// Sets of ids as bitmaps.
#include "bindings/arrays.h"
#include "bindings/storage.h"
#include "kernels/building/id_bitmap.h"

using namespace gnnstore;
using namespace nb::literals;

namespace {

int64_t mark(const OutputArray &words, const InputArray &ids) {
    auto *const bits = output_data<uint64_t>(words, "words", "uint64");
    const int64_t *const values = input_data<int64_t>(ids, "ids", "int64");
    const int64_t num_words = length(words), num_ids = length(ids);
    const GilRelease release;
    return bitmap_mark(bits, num_words, values, num_ids);
}

nb::tuple count(const InputArray &words) {
    const auto *const bits = input_data<uint64_t>(words, "words", "uint64");
    const int64_t num_words = length(words);
    const auto ranks = pooled_vector<int64_t>((num_words + words_per_rank - 1) / words_per_rank);
    auto num_ids = without_gil([&] { return bitmap_count(bits, num_words, ranks.data()); });
    return nb::make_tuple(ranks, num_ids);
}

template <class Rank>
nb::object rank_as(const InputArray &words, const InputArray &ranks, const InputArray &ids) {
    const auto *const bits = input_data<uint64_t>(words, "words", "uint64");
    const int64_t *const starts = input_data<int64_t>(ranks, "ranks", "int64");
    const int64_t *const values = input_data<int64_t>(ids, "ids", "int64");
    const int64_t num_words = length(words), num_ids = length(ids);
    if (length(ranks) != (num_words + words_per_rank - 1) / words_per_rank)
        throw invalid("ranks must have one entry for each 8 words");
    const auto out = pooled_vector<Rank>(num_ids);
    without_gil([&] { bitmap_rank(bits, num_words, starts, values, num_ids, out.data()); });
    return nb::cast(out);
}

nb::object rank(const InputArray &words, const InputArray &ranks, const InputArray &ids,
                int rank_bytes) {
    if (rank_bytes == 4) return rank_as<int32_t>(words, ranks, ids);
    if (rank_bytes != 8) throw invalid("rank_bytes must be 4 or 8");
    return rank_as<int64_t>(words, ranks, ids);
}

}  // namespace

void bind_id_bitmap(nb::module_ &m) {
    m.def("bitmap_mark", mark, "words"_a.noconvert(), "ids"_a.noconvert());
    m.def("bitmap_count", count, "words"_a.noconvert());
    m.def("bitmap_rank", rank, "words"_a.noconvert(), "ranks"_a.noconvert(), "ids"_a.noconvert(),
          "rank_bytes"_a = 8);
}
