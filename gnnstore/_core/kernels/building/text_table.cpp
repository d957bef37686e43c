#include "kernels/building/text_table.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <cmath>
#include <cstring>
#include <functional>
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

bool is_digit(char c) { return c >= '0' && c <= '9'; }

struct Integer {
    uint64_t magnitude;
    bool negative;

    bool fits_signed() const {
        constexpr auto most = static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
        return magnitude <= most + (negative ? 1 : 0);
    }
    int64_t as_signed() const {
        return static_cast<int64_t>(negative ? 0 - magnitude : magnitude);
    }
};

// Whether an integer of up to 64 bits was read; `place` is behind it then.
bool read_integer(const char *&place, const char *end, Integer &out) {
    out.negative = place < end && *place == '-';
    if (place < end && (out.negative || *place == '+')) ++place;
    while (end - place > 1 && *place == '0' && is_digit(place[1])) ++place;
    const Digits digits = read_digits(place, end);
    if (digits.count == 0) return false;
    out.magnitude = digits.value;
    while (digits.count == 18 && place < end && is_digit(*place)) {
        constexpr uint64_t most = std::numeric_limits<uint64_t>::max();
        const auto digit = static_cast<uint64_t>(*place++ - '0');
        if (out.magnitude > (most - digit) / 10) return false;
        out.magnitude = out.magnitude * 10 + digit;
    }
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
bool read_decimal(const char *&place, const char *end, const TextForm &form, T &value) {
    if (place < end && *place == '+') {
        ++place;
        if (place < end && *place == '-') return false;
    }
    if (read_short_decimal(place, end, value)) return true;
    auto [behind, error] = std::from_chars(place, end, value);
    if (error == std::errc::result_out_of_range) {  // what is too small is rounded to 0
        long double wide = 0;
        behind = std::from_chars(place, end, wide).ptr;
        if (wide == 0 || std::abs(wide) > 1) return false;
        value = static_cast<T>(wide);
    } else if (error != std::errc()) {
        return false;
    }
    if (std::isnan(value) && (behind[-1] == ')' || !form.allows_nan)) return false;  // nan(...)
    place = behind;
    return true;
}

bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\v' || c == '\f' || c == '\r'; }

template <class T>
bool stored(bool is_read, const T &value, uint8_t *out) {
    if (is_read) std::memcpy(out, &value, sizeof value);
    return is_read;
}

// Whether there is a number; `place` is behind it then.
bool read_number(const char *&place, const char *end, char kind, const TextForm &form,
                 uint8_t *out) {
    Integer integer;
    float single;
    double decimal;
    switch (kind) {
        case 'f': return stored(read_decimal(place, end, form, single), single, out);
        case 'd': return stored(read_decimal(place, end, form, decimal), decimal, out);
        default: break;
    }
    if (!read_integer(place, end, integer)) return false;
    if (kind == 'u')
        return stored(!integer.negative || integer.magnitude == 0, integer.magnitude, out);
    const int64_t value = integer.as_signed();
    return stored(integer.fits_signed() &&
                      (kind == 'i' || (value >= form.low && value <= form.high)),
                  value, out);
}

// Whether a line that is written as most are has the right numbers; `place` is behind it then.
bool read_plain_line(const char *&place, const char *end, const TextForm &form, uint8_t *record) {
    const bool has_runs = form.separator == ' ';
    const char separator = form.separator == ',' ? ',' : '\t';
    const auto skip_spaces = [&] {
        while (place < end && *place == ' ') ++place;
    };
    if (form.has_names || form.has_braces() || form.fields.empty()) return false;
    skip_spaces();
    if (place < end && form.comments.find(*place) != std::string_view::npos) return false;
    for (size_t i = 0; i < form.fields.size(); ++i) {
        if (i > 0) {
            const char *const behind = place;
            skip_spaces();
            if (place < end && *place == separator) {
                ++place;
                skip_spaces();
            } else if (place == behind || !has_runs) {
                return false;
            }
        }
        const auto [kind, offset] = form.fields[i];
        if (kind == '-') {
            const char *const begin = place;
            while (place < end && *place != '\n' && *place != ',' && !is_blank(*place)) ++place;
            if (place == begin) return false;
        } else if (!read_number(place, end, kind, form, record + offset)) {
            return false;
        }
    }
    while (place < end && is_blank(*place)) ++place;
    return place == end || *place++ == '\n';
}

using Fields = std::vector<std::string_view>;

std::string_view trimmed(std::string_view text) {
    while (!text.empty() && is_blank(text.back())) text.remove_suffix(1);
    while (!text.empty() && is_blank(text.front())) text.remove_prefix(1);
    return text;
}

// The end of a term of N-Triples that begins at a place; npos: none does.
size_t end_of_term(std::string_view line, size_t begin) {
    const auto behind = [&](char mark, size_t from) {
        const size_t found = line.find(mark, from);
        return found == std::string_view::npos ? found : found + 1;
    };
    if (line[begin] == '<') return behind('>', begin);
    if (line.substr(begin, 2) == "_:") {
        size_t end = std::min(line.find_first_of(" \t\r<\"", begin), line.size());
        while (line[end - 1] == '.') --end;
        return end;
    }
    if (line[begin] != '"') return std::string_view::npos;
    size_t end = begin + 1;
    for (; end < line.size() && line[end] != '"'; ++end) end += line[end] == '\\' ? 1 : 0;
    if (end >= line.size()) return std::string_view::npos;
    ++end;
    if (line.substr(end, 3) == "^^<") return behind('>', end);
    if (line.substr(end, 1) == "@") {
        constexpr std::string_view letters =
            "-0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
        end = std::min(line.find_first_not_of(letters, end + 1), line.size());
    }
    return end;
}

// The terms of a line of N-Triples; none if it is none.
void split_terms(std::string_view line, Fields &fields) {
    size_t place = 0;
    const auto skip_blanks = [&] {
        while (place < line.size() && is_blank(line[place])) ++place;
        return place < line.size();
    };
    while (skip_blanks() && line[place] != '.') {
        const size_t end = end_of_term(line, place);
        if (end == std::string_view::npos) break;
        fields.push_back(line.substr(place, end - place));
        place = end;
    }
    const bool has_stop = place < line.size() && line[place++] == '.';
    if (!has_stop || (skip_blanks() && line[place] != '#')) fields.clear();
}

// Where braces begin that are the last field of a line; npos: none do.
size_t begin_of_braces(std::string_view line, char separator) {
    const size_t begin = line.find('{');
    if (begin == std::string_view::npos || trimmed(line).back() != '}') return line.npos;
    std::string_view before = line.substr(0, begin);
    if (separator == ' ') return !before.empty() && is_blank(before.back()) ? begin : line.npos;
    while (!before.empty() && is_blank(before.back()) && before.back() != separator)
        before.remove_suffix(1);
    return before.ends_with(separator) ? begin : line.npos;
}

// The fields of a line that is not blank.
void split(std::string_view line, char separator, bool has_braces, Fields &fields) {
    fields.clear();
    if (separator == '.') return split_terms(line, fields);
    const size_t braces = has_braces ? begin_of_braces(line, separator) : line.npos;
    const auto rest = braces == line.npos ? std::string_view() : trimmed(line.substr(braces));
    line = line.substr(0, braces);
    const bool has_runs = separator == ' ';
    if (has_runs) line = trimmed(line);
    for (size_t begin = 0; begin <= line.size();) {
        const size_t end = std::min(line.find(has_runs ? '\t' : separator, begin), line.size());
        std::string_view part = trimmed(line.substr(begin, end - begin));
        begin = end + 1;
        while (has_runs) {
            const auto *const space = std::find_if(part.begin(), part.end(), is_blank);
            if (space == part.end()) break;
            fields.push_back(part.substr(0, static_cast<size_t>(space - part.begin())));
            part = trimmed(part.substr(fields.back().size()));
        }
        fields.push_back(part);
    }
    if (rest.empty()) return;
    if (!has_runs) fields.pop_back();
    fields.push_back(rest);
}

bool read_field(std::string_view field, char kind, const TextForm &form, const char *text,
                uint8_t *out) {
    if (kind == '-') return true;
    if (kind == '*') return field.starts_with('{');
    if (kind == 'n') {
        const uint32_t place[] = {static_cast<uint32_t>(field.data() - text),
                                  static_cast<uint32_t>(field.size())};
        std::memcpy(out, place, sizeof place);
        return !field.empty();
    }
    const char *place = field.data();
    const char *const end = place + field.size();
    return read_number(place, end, kind, form, out) && place == end;
}

}  // namespace

int64_t count_lines(std::string_view text) {
    return std::count(text.begin(), text.end(), '\n') + (!text.empty() && text.back() != '\n');
}

std::vector<std::string_view> split_text(std::string_view line, char separator) {
    Fields fields;
    if (!trimmed(line).empty()) split(line, separator, true, fields);
    return fields;
}

ParsedText parse_text(std::string_view text, const TextForm &form, uint8_t *records) {
    const char *place = text.data();
    const char *const end = place + text.size();
    ParsedText parsed;
    Fields fields;
    while (place < end) {
        uint8_t *const record = records + parsed.num_rows * form.record_bytes;
        const char *const line = place;
        if (read_plain_line(place, end, form, record)) {
            ++parsed.num_rows;
            continue;
        }
        const void *found = std::memchr(line, '\n', static_cast<size_t>(end - line));
        const char *const line_end = found == nullptr ? end : static_cast<const char *>(found);
        place = std::min(line_end + 1, end);
        const auto *const first = std::find_if_not(line, line_end, is_blank);
        if (first == line_end) {
            if (form.skips_blank) continue;
            parsed.fault = TextFault{line - text.data(), 0};
            return parsed;
        }
        if (form.comments.find(*first) != std::string_view::npos) {
            ++parsed.num_comments;
            continue;
        }
        split({line, line_end}, form.separator, form.has_braces(), fields);
        // Tabs at the end of a line separate fields only if others are wanted there.
        while (form.separator == '\t' && fields.size() > form.fields.size() && fields.back().empty())
            fields.pop_back();
        TextFault fault{line - text.data(), static_cast<int64_t>(fields.size())};
        if (fields.size() != form.fields.size()) {
            parsed.fault = fault;
            return parsed;
        }
        for (size_t i = 0; i < form.fields.size(); ++i) {
            const auto [kind, offset] = form.fields[i];
            if (read_field(fields[i], kind, form, text.data(), record + offset)) continue;
            fault.field = static_cast<int64_t>(i);
            fault.begin = fields[i].data() - text.data();
            fault.end = fault.begin + static_cast<int64_t>(fields[i].size());
            parsed.fault = fault;
            return parsed;
        }
        ++parsed.num_rows;
    }
    return parsed;
}

std::vector<int64_t> encode_names(std::string_view text, const uint32_t *places, int64_t num_names,
                                  int64_t *codes) {
    const auto name_at = [&](int64_t i) { return text.substr(places[2 * i], places[2 * i + 1]); };
    std::vector<int64_t> first;
    // Open addressing: the codes by hash, -1 where there is none.
    const size_t mask = std::bit_ceil(2 * static_cast<size_t>(num_names) + 1) - 1;
    std::vector<int32_t> table(mask + 1, -1);
    for (int64_t i = 0; i < num_names; ++i) {
        const std::string_view name = name_at(i);
        size_t slot = std::hash<std::string_view>()(name) & mask;
        while (table[slot] >= 0 && name_at(first[static_cast<size_t>(table[slot])]) != name)
            slot = (slot + 1) & mask;
        if (table[slot] < 0) {
            table[slot] = static_cast<int32_t>(first.size());
            first.push_back(i);
        }
        codes[i] = table[slot];
    }
    return first;
}

}  // namespace gnnstore
