// Tables in text: numbers become values, names become places in the text. The first line that is
// not a row is returned with the field at fault, for the caller to name the mistake.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string_view>
#include <vector>

namespace gnnstore {

// A field of a line, and where its value goes in the record of the line.
struct TextField {
    // 'e': int64 within limits, 'i': int64, 'u': uint64, 'f': float32, 'd': float64, 'n': a name, as
    // the two uint32 of its first byte and its length, '-': skipped, whatever it is, '*': the rest of
    // a line, which is skipped, in braces as networkx writes them
    char kind;
    int64_t offset;
};

struct TextForm {
    std::vector<TextField> fields;
    // ',' and '\t': commas or tabs with blanks around them. ' ': runs of blanks, in which a field is
    // missing between two tabs. '.': the terms of N-Triples, behind which a stop is.
    char separator;
    std::string_view comments;  // begin lines that are skipped
    bool skips_blank;           // whether blank lines are skipped
    bool allows_nan;
    int64_t low = std::numeric_limits<int64_t>::min();  // the limits of kind 'e', inclusive
    int64_t high = std::numeric_limits<int64_t>::max();
    int64_t record_bytes = 0;
    bool has_names = false;

    bool has_braces() const { return !fields.empty() && fields.back().kind == '*'; }
};

// The most rows that a text can have.
int64_t count_lines(std::string_view text);

struct TextFault {
    int64_t line;        // its first byte
    int64_t num_fields;  // of the line
    int64_t field = -1;  // the first that has no value; -1: the number of fields is wrong
    int64_t begin = 0;   // the bytes of the field
    int64_t end = 0;
};

struct ParsedText {
    int64_t num_rows = 0;
    int64_t num_comments = 0;
    std::optional<TextFault> fault;
};

// The fields of a line; none if it is blank, or has other terms than N-Triples.
std::vector<std::string_view> split_text(std::string_view line, char separator);

// Writes a record for each line, up to the first fault.
ParsedText parse_text(std::string_view text, const TextForm &form, uint8_t *records);

// Numbers distinct names in order of appearance: writes the number of each of the names, given by
// first byte and length, and returns the position at which each distinct name appears first.
std::vector<int64_t> encode_names(std::string_view text, const uint32_t *places, int64_t num_names,
                                  int64_t *codes);

}  // namespace gnnstore
