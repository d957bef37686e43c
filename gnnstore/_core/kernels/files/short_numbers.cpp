#include "kernels/files/short_numbers.h"

#include <array>
#include <cstring>
#include <type_traits>

#include "kernels/base/errors.h"

namespace gnnstore {

namespace {

constexpr int64_t head_words = 2, numbers_per_control = 4;
constexpr int32_t wide_flag = 1;

// Bytes of a difference, by its two bits.
template <class T>
constexpr std::array<int, 4> widths = sizeof(T) == 4 ? std::array{1, 2, 3, 4}
                                                     : std::array{1, 2, 4, 8};

int64_t num_controls(int64_t count) {
    return (count + numbers_per_control - 1) / numbers_per_control;
}

// Whole words, with room behind the last difference for one that is read as a whole.
template <class T>
int64_t words_of(int64_t count, int64_t data_bytes) {
    const int64_t word = sizeof(int32_t), room = sizeof(T);
    return head_words + (num_controls(count) + data_bytes + room + word - 1) / word;
}

// Small differences of either sign as small numbers: 0, -1, 1, -2, 2 ...
template <class T>
std::make_unsigned_t<T> zigzag(T number, T former) {
    using U = std::make_unsigned_t<T>;
    const U difference = static_cast<U>(number) - static_cast<U>(former);
    return (difference << 1) ^ (U{0} - (difference >> (8 * sizeof(U) - 1)));
}

template <class T>
int code_of(std::make_unsigned_t<T> difference) {
    int code = 0;
    for (int k = 0; k < 3; ++k) code += (difference >> (8 * widths<T>[k])) != 0;
    return code;
}

[[noreturn]] void refuse() { throw invalid("these are no shortened numbers"); }

}  // namespace

template <class T>
std::vector<int32_t> shorten(const T *numbers, int64_t count) {
    using U = std::make_unsigned_t<T>;
    int64_t data_bytes = 0;
    T former = 0;
    for (int64_t i = 0; i < count; ++i) {
        data_bytes += widths<T>[code_of<T>(zigzag(numbers[i], former))];
        former = numbers[i];
    }
    std::vector<int32_t> words(static_cast<size_t>(words_of<T>(count, data_bytes)));
    const int64_t head = 2 * count + (sizeof(T) == 8 ? wide_flag : 0);
    std::memcpy(words.data(), &head, sizeof(head));
    auto *const controls = reinterpret_cast<uint8_t *>(words.data() + head_words);
    uint8_t *data = controls + num_controls(count);
    former = 0;
    for (int64_t i = 0; i < count; ++i) {
        const U difference = zigzag(numbers[i], former);
        const int code = code_of<T>(difference);
        controls[i / numbers_per_control] |=
            static_cast<uint8_t>(code << (2 * (i % numbers_per_control)));
        std::memcpy(data, &difference, sizeof(U));  // the next one overwrites its zeros
        data += widths<T>[code];
        former = numbers[i];
    }
    return words;
}

ShortHead read_short_head(const int32_t *words, int64_t num_words) {
    if (num_words < head_words) refuse();
    int64_t head;
    std::memcpy(&head, words, sizeof(head));
    // Each number has a quarter of a byte at least: more of them are refused before they are
    // given memory.
    const int64_t count = head >> 1, most = 4 * sizeof(int32_t) * (num_words - head_words);
    if (count < 0 || count > most) refuse();
    return {count, (head & wide_flag) != 0};
}

template <class T>
void restore(const int32_t *words, int64_t num_words, T *out) {
    using U = std::make_unsigned_t<T>;
    const auto [count, is_wide] = read_short_head(words, num_words);
    if (is_wide != (sizeof(T) == 8)) refuse();
    const auto *const controls = reinterpret_cast<const uint8_t *>(words + head_words);
    const auto code_at = [controls](int64_t i) {
        return controls[i / numbers_per_control] >> (2 * (i % numbers_per_control)) & 3;
    };
    int64_t data_bytes = 0;
    for (int64_t i = 0; i < count; ++i) data_bytes += widths<T>[code_at(i)];
    if (num_words != words_of<T>(count, data_bytes)) refuse();
    const uint8_t *data = controls + num_controls(count);
    U former = 0;
    for (int64_t i = 0; i < count; ++i) {
        const int width = widths<T>[code_at(i)];
        U difference;
        std::memcpy(&difference, data, sizeof(U));
        difference &= ~U{0} >> (8 * (sizeof(U) - width));
        former += (difference >> 1) ^ (U{0} - (difference & 1));
        out[i] = static_cast<T>(former);
        data += width;
    }
}

template std::vector<int32_t> shorten(const int32_t *, int64_t);
template std::vector<int32_t> shorten(const int64_t *, int64_t);
template void restore(const int32_t *, int64_t, int32_t *);
template void restore(const int32_t *, int64_t, int64_t *);

}  // namespace gnnstore
