// Tables of numbers in text: only clean decimal numbers. The caller reads the first line that is not
// clean by itself, to name the mistake, and goes on behind it.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace gnnstore {

// A field of a line, and where its value goes in the record of the line.
struct TextField {
    char kind;  // 'i': int64, 'f': float32, 'd': float64, '-': skipped, whatever it is
    int64_t offset;
};

struct TextForm {
    std::vector<TextField> fields;
    char separator;  // ' ': any run of spaces and tabs; else one character, with these around it
    std::string_view comments;  // begin lines that are skipped; with any, so are blank lines
    bool ignores_extra;         // whether more fields may follow
    int64_t record_bytes;
};

// The most rows that a text can have.
int64_t count_lines(std::string_view text);

struct ParsedText {
    int64_t num_rows;
    // The first byte of the first line that has another form, or a number that does not fit or is so
    // long that it might not; -1: there is no such line.
    int64_t fault;
};

// Writes a record for each line from a place on, up to the first fault.
ParsedText parse_text(std::string_view text, int64_t begin, const TextForm &form, uint8_t *records);

}  // namespace gnnstore
