#include "kernels/files/short_numbers.h"

#include <algorithm>
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
constexpr int width_of(int code) {
    return sizeof(T) == 4 ? code + 1 : 1 << code;
}

// Where the differences of four numbers begin, and their bytes in all, by the byte of their widths:
// so that one can be found without the width of the one before.
struct FourPlaces {
    std::array<uint8_t, numbers_per_control> begins;
    uint8_t num_bytes;
};

template <class T>
constexpr auto places_by_control = [] {
    std::array<FourPlaces, 256> found{};
    for (size_t control = 0; control < found.size(); ++control) {
        int at = 0;
        for (size_t k = 0; k < numbers_per_control; ++k) {
            found[control].begins[k] = static_cast<uint8_t>(at);
            at += width_of<T>(control >> (2 * k) & 3);
        }
        found[control].num_bytes = static_cast<uint8_t>(at);
    }
    return found;
}();

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
    for (int k = 0; k < 3; ++k) code += (difference >> (8 * width_of<T>(k))) != 0;
    return code;
}

template <class T>
int64_t data_bytes_of(const T *numbers, int64_t count) {
    if (count == 0) return 0;
    int64_t num_bytes = width_of<T>(code_of<T>(zigzag(numbers[0], T{0})));
    for (int64_t i = 1; i < count; ++i)
        num_bytes += width_of<T>(code_of<T>(zigzag(numbers[i], numbers[i - 1])));
    return num_bytes;
}

[[noreturn]] void refuse() { throw invalid("these are no shortened numbers"); }

}  // namespace

template <class T>
std::vector<int32_t> shorten(const T *numbers, int64_t count) {
    using U = std::make_unsigned_t<T>;
    const int64_t data_bytes = data_bytes_of(numbers, count);
    std::vector<int32_t> words(static_cast<size_t>(words_of<T>(count, data_bytes)));
    const int64_t head = 2 * count + (sizeof(T) == 8 ? wide_flag : 0);
    std::memcpy(words.data(), &head, sizeof(head));
    auto *const controls = reinterpret_cast<uint8_t *>(words.data() + head_words);
    uint8_t *data = controls + num_controls(count);
    T former = 0;
    for (int64_t begin = 0; begin < count; begin += numbers_per_control) {
        const int64_t end = std::min(begin + numbers_per_control, count);
        int control = 0;
        for (int64_t i = begin; i < end; ++i) {
            const U difference = zigzag(numbers[i], former);
            const int code = code_of<T>(difference);
            control |= code << (2 * (i - begin));
            std::memcpy(data, &difference, sizeof(U));  // the next one overwrites its zeros
            data += width_of<T>(code);
            former = numbers[i];
        }
        controls[begin / numbers_per_control] = static_cast<uint8_t>(control);
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
    const auto &places = places_by_control<T>;
    const int64_t num_whole = count / numbers_per_control;
    const int num_left = static_cast<int>(count % numbers_per_control);
    int64_t data_bytes = 0;
    for (int64_t i = 0; i < num_whole; ++i) data_bytes += places[controls[i]].num_bytes;
    if (num_left > 0) data_bytes += places[controls[num_whole]].begins[num_left];
    if (num_words != words_of<T>(count, data_bytes)) refuse();
    const uint8_t *data = controls + num_controls(count);
    U former = 0;
    const auto take = [&](int control, int k) {
        U difference;
        std::memcpy(&difference, data + places[control].begins[k], sizeof(U));
        difference &= ~U{0} >> (8 * (sizeof(U) - width_of<T>(control >> (2 * k) & 3)));
        former += (difference >> 1) ^ (U{0} - (difference & 1));
        *out++ = static_cast<T>(former);
    };
    for (int64_t i = 0; i < num_whole; ++i) {
        const int control = controls[i];
        for (int k = 0; k < numbers_per_control; ++k) take(control, k);
        data += places[control].num_bytes;
    }
    for (int k = 0; k < num_left; ++k) take(controls[num_whole], k);
}

template std::vector<int32_t> shorten(const int32_t *, int64_t);
template std::vector<int32_t> shorten(const int64_t *, int64_t);
template void restore(const int32_t *, int64_t, int32_t *);
template void restore(const int32_t *, int64_t, int64_t *);

}  // namespace gnnstore
