#include "kernels/building/text_table.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <cmath>
#include <cstring>
#include <limits>

namespace gnnstore {
namespace {

constexpr uint64_t power_of_ten[] = {1,      10,      100,      1000,     10000,
                                     100000, 1000000, 10000000, 100000000};
// Powers of ten that are exact as double.
constexpr double exact_power[] = {1e0,  1e1,  1e2,  1e3,  1e4,  1e5,  1e6,  1e7,
                                  1e8,  1e9,  1e10, 1e11, 1e12, 1e13, 1e14, 1e15,
                                  1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22};

struct Digits {
    uint64_t value = 0;
    int count = 0;
};

// The digits from a place on, eight at a time; a number of more than 18 is left off somewhere.
Digits read_digits(const char *&place, const char *end) {
    constexpr int most = 18;  // fit in 63 bits
    static_assert(std::endian::native == std::endian::little);
    Digits found;
    while (end - place >= 8 && found.count <= most - 8) {
        uint64_t word;
        std::memcpy(&word, place, sizeof word);
        word ^= 0x3030303030303030u;
        const uint64_t others = ((word + 0x7676767676767676u) | word) & 0x8080808080808080u;
        const int count = others == 0 ? 8 : std::countr_zero(others) / 8;
        if (count == 0) return found;
        // The first digit lies lowest: zeros below it are digits before it.
        word <<= 8 * (8 - count);
        word = word * 2561 >> 8;
        word = (word & 0x00FF00FF00FF00FFu) * 6553601 >> 16;
        word = (word & 0x0000FFFF0000FFFFu) * 42949672960001u >> 32;
        found.value = found.value * power_of_ten[count] + word;
        found.count += count;
        place += count;
        if (count < 8) return found;
    }
    for (; place < end && found.count < most; ++place, ++found.count) {
        const auto digit = static_cast<unsigned char>(*place - '0');
        if (digit > 9) break;
        found.value = found.value * 10 + digit;
    }
    return found;
}

// Whether a number was read; `place` is behind it then.
bool read_integer(const char *&place, const char *end, uint8_t *out) {
    const bool negative = place < end && *place == '-';
    if (place < end && (negative || *place == '+')) ++place;
    const Digits digits = read_digits(place, end);
    if (digits.count == 0) return false;
    uint64_t unsigned_value = digits.value;
    if (digits.count == 18 && place < end && *place >= '0' && *place <= '9')
        unsigned_value = unsigned_value * 10 + static_cast<uint64_t>(*place++ - '0');
    if (unsigned_value > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) return false;
    const auto magnitude = static_cast<int64_t>(unsigned_value);
    const int64_t value = negative ? -magnitude : magnitude;
    std::memcpy(out, &value, sizeof value);
    return true;
}

// Rounds to float as the decimal number itself would be. That of a double is the same unless the
// double lies half-way between two floats, where what was rounded off decides.
bool narrow(double value, float &out) {
    constexpr uint64_t rest = (uint64_t{1} << 29) - 1;
    const double magnitude = std::abs(value);
    if (magnitude != 0 && (magnitude < static_cast<double>(std::numeric_limits<float>::min()) ||
                           magnitude > static_cast<double>(std::numeric_limits<float>::max()) ||
                           (std::bit_cast<uint64_t>(value) & rest) == (rest + 1) / 2))
        return false;
    out = static_cast<float>(value);
    return true;
}

bool narrow(double value, double &out) {
    out = value;
    return true;
}

// A decimal number of few digits: one division or multiplication of exact numbers, rounded once.
template <class T>
bool read_short_decimal(const char *&begin, const char *end, T &out) {
    constexpr uint64_t exact = uint64_t{1} << 53;
    const char *place = begin;
    const bool negative = place < end && *place == '-';
    if (negative) ++place;
    const Digits whole = read_digits(place, end);
    Digits part;
    if (place < end && *place == '.') {
        ++place;
        part = read_digits(place, end);
    }
    const int count = whole.count + part.count;
    if (count == 0 || count > 17) return false;
    uint64_t digits = whole.value;
    for (int left = part.count; left > 0; left -= 8) digits *= power_of_ten[std::min(left, 8)];
    digits += part.value;
    int exponent = -part.count;
    if (place < end && (*place == 'e' || *place == 'E')) {
        ++place;
        const bool down = place < end && *place == '-';
        if (place < end && (down || *place == '+')) ++place;
        const Digits power = read_digits(place, end);
        if (power.count == 0 || power.count > 3) return false;
        exponent += static_cast<int>(power.value) * (down ? -1 : 1);
    }
    if (digits > exact || exponent < -22 || exponent > 22) return false;
    const auto mantissa = static_cast<double>(digits);
    const double magnitude =
        exponent < 0 ? mantissa / exact_power[-exponent] : mantissa * exact_power[exponent];
    if (!narrow(negative ? -magnitude : magnitude, out)) return false;
    begin = place;
    return true;
}

template <class T>
bool read_decimal(const char *&place, const char *end, uint8_t *out) {
    if (place < end && *place == '+') {
        ++place;
        if (place < end && *place == '-') return false;
    }
    T value;
    if (!read_short_decimal(place, end, value)) {
        const auto [behind, error] = std::from_chars(place, end, value);
        if (error != std::errc()) return false;
        if (std::isnan(value) && behind[-1] == ')') return false;  // nan(...)
        place = behind;
    }
    std::memcpy(out, &value, sizeof value);
    return true;
}

bool is_blank(char c) { return c == ' ' || c == '\t'; }

void skip_blanks(const char *&place, const char *end) {
    while (place < end && is_blank(*place)) ++place;
}

// Of blanks. A field may be missing before a tab: whoever looks at the line alone can tell.
int64_t num_tabs(const char *begin, const char *end) { return std::count(begin, end, '\t'); }

// A field that nobody wants: up to the separator, or the end of the line.
bool skip_field(const char *&place, const char *end, char separator) {
    const char *const begin = place;
    for (; place < end && *place != '\n' && *place != '\r'; ++place) {
        if (*place == '\v' || *place == '\f') return false;
        if (separator == ' ' ? is_blank(*place) : *place == separator) break;
    }
    return separator != ' ' || place > begin;
}

bool read_field(const char *&place, const char *end, char kind, char separator, uint8_t *out) {
    switch (kind) {
        case 'i': return read_integer(place, end, out);
        case 'f': return read_decimal<float>(place, end, out);
        case 'd': return read_decimal<double>(place, end, out);
        default: return skip_field(place, end, separator);
    }
}

}  // namespace

int64_t count_lines(std::string_view text) {
    return std::count(text.begin(), text.end(), '\n') + (!text.empty() && text.back() != '\n');
}

namespace {

// Whether a line has the right fields; `place` is behind them then.
bool read_line(const char *&place, const char *end, const TextForm &form, uint8_t *record) {
    for (size_t i = 0; i < form.fields.size(); ++i) {
        if (i > 0) {
            const char *const behind = place;
            skip_blanks(place, end);
            if (form.separator == ' ') {
                if (place == behind) return false;
                if (place - behind > 1 && num_tabs(behind, place) > 1) return false;
            } else {
                if (place == end || *place != form.separator) return false;
                ++place;
                skip_blanks(place, end);
            }
        }
        const TextField &field = form.fields[i];
        if (!read_field(place, end, field.kind, form.separator, record + field.offset))
            return false;
    }
    // A number ends where blanks, a separator or the line do.
    const char *const behind = place;
    while (place < end && (is_blank(*place) || *place == '\r')) ++place;
    if (place == end || *place == '\n') return true;
    return form.ignores_extra &&
           (form.separator == ' ' ? place > behind : *place == form.separator);
}

}  // namespace

ParsedText parse_text(std::string_view text, int64_t begin, const TextForm &form,
                      uint8_t *records) {
    const char *place = text.data() + begin;
    const char *const end = text.data() + text.size();
    const auto next_line = [&] {
        const void *found = std::memchr(place, '\n', static_cast<size_t>(end - place));
        place = found == nullptr ? end : static_cast<const char *>(found) + 1;
    };
    int64_t num_rows = 0;
    while (place < end) {
        const char *const line = place;
        skip_blanks(place, end);
        if (!form.comments.empty()) {
            const bool ends = place == end || *place == '\n' ||
                              (*place == '\r' && place + 1 < end && place[1] == '\n');
            if (ends || form.comments.find(*place) != std::string_view::npos) {
                next_line();
                continue;
            }
        }
        const bool lacks_first = form.separator == ' ' && place > line && num_tabs(line, place) > 0;
        if (lacks_first || !read_line(place, end, form, records + num_rows * form.record_bytes))
            return {num_rows, line - text.data()};
        next_line();
        ++num_rows;
    }
    return {num_rows, -1};
}

}  // namespace gnnstore
