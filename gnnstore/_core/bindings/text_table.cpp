#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>

#include <stdexcept>
#include <string>
#include <tuple>

#include "bindings/arrays.h"
#include "bindings/storage.h"
#include "kernels/building/text_table.h"

using namespace gnnstore;
using namespace nb::literals;

namespace {

TextForm form_of(const std::string &kinds, bool is_comma, std::string_view comments,
                 bool ignores_extra) {
    TextForm form{{}, is_comma ? ',' : ' ', comments, ignores_extra, 0};
    for (const char kind : kinds) {
        if (std::string_view("ifd-").find(kind) == std::string_view::npos)
            throw std::invalid_argument("kinds must be of the letters i, f, d and -, got " + kinds);
        form.fields.push_back({kind, form.record_bytes});
        form.record_bytes += kind == '-' ? 0 : kind == 'f' ? 4 : 8;
    }
    return form;
}

std::tuple<NumpyVector<uint8_t>, int64_t> parse(const nb::bytes &text, const std::string &kinds,
                                                bool is_comma, const nb::bytes &comments,
                                                bool ignore_extra, int64_t begin) {
    const std::string_view lines(text.c_str(), text.size());
    if (begin < 0 || static_cast<size_t>(begin) > lines.size())
        throw std::out_of_range("begin is outside of the text");
    const TextForm form =
        form_of(kinds, is_comma, {comments.c_str(), comments.size()}, ignore_extra);
    std::unique_ptr<PooledBuffer> buffer;
    ParsedText parsed;
    {
        const GilRelease release;
        buffer = std::make_unique<PooledBuffer>(
            checked_multiply(count_lines(lines.substr(static_cast<size_t>(begin))),
                             form.record_bytes, "the records"));
        parsed = parse_text(lines, begin, form, static_cast<uint8_t *>(buffer->raw()));
    }
    auto *const records = static_cast<uint8_t *>(buffer->raw());
    return {owned_vector(records, parsed.num_rows * form.record_bytes, std::move(buffer)),
            parsed.fault};
}

}  // namespace

void bind_text_table(nb::module_ &m) {
    m.def("parse_text", parse, "text"_a, "kinds"_a, "is_comma"_a, "comments"_a, "ignore_extra"_a,
          "begin"_a = 0);
}
