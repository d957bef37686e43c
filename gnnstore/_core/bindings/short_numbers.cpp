// Vectors of integers in fewer bytes.
#include "bindings/arrays.h"
#include "bindings/storage.h"
#include "kernels/files/short_numbers.h"

using namespace gnnstore;
using namespace nb::literals;

namespace {

NumpyVector<int32_t> short_form(const InputArray &numbers) {
    return with_integers(numbers, "numbers", [&](const auto *values) {
        const int64_t count = length(numbers);
        auto words = without_gil([&] { return shorten(values, count); });
        return take_vector(std::move(words));
    });
}

template <class T>
nb::object restored_as(const int32_t *words, int64_t num_words, int64_t count) {
    const auto numbers = pooled_vector<T>(count);
    without_gil([&] { restore(words, num_words, numbers.data()); });
    return nb::cast(numbers);
}

nb::object restored(const InputArray &array) {
    const int32_t *const words = input_data<int32_t>(array, "words", "int32");
    const int64_t num_words = length(array);
    const ShortHead head = read_short_head(words, num_words);
    return head.is_wide ? restored_as<int64_t>(words, num_words, head.count)
                        : restored_as<int32_t>(words, num_words, head.count);
}

}  // namespace

void bind_short_numbers(nb::module_ &m) {
    m.def("shorten", short_form, "numbers"_a.noconvert());
    m.def("restore", restored, "words"_a.noconvert());
}
