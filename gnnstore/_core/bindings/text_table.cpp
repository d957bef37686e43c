#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>

#include <limits>
#include <optional>
#include <string>
#include <tuple>

#include "bindings/arrays.h"
#include "bindings/storage.h"
#include "kernels/building/text_table.h"

using namespace gnnstore;
using namespace nb::literals;

namespace {

std::string_view view_of(const nb::bytes &text) {
    if (text.size() > std::numeric_limits<uint32_t>::max())
        throw out_of_range("the text must have less than 2^32 bytes");
    return {text.c_str(), text.size()};
}

char checked_separator(const std::string &separator) {
    if (separator.size() != 1 || std::string_view(",\t .").find(separator) == std::string_view::npos)
        throw invalid("separator must be a comma, a tab, a space or a stop");
    return separator[0];
}

nb::list split(const nb::bytes &line, const std::string &separator) {
    nb::list fields;
    for (const auto field : split_text(view_of(line), checked_separator(separator)))
        fields.append(nb::bytes(field.data(), field.size()));
    return fields;
}

using Fault = std::optional<std::tuple<int64_t, int64_t, int64_t, int64_t, int64_t>>;

std::tuple<NumpyVector<uint8_t>, int64_t, Fault> parse(
    const nb::bytes &text, const std::string &kinds, const std::string &separator,
    const nb::bytes &comments, bool skip_blank, bool allow_nan, int64_t low, int64_t high) {
    const std::string_view lines = view_of(text);
    TextForm form{{},        checked_separator(separator), {comments.c_str(), comments.size()},
                  skip_blank, allow_nan,                    low,
                  high};
    for (const char kind : kinds) {
        if (std::string_view("eiufdn-*").find(kind) == std::string_view::npos)
            throw invalid("kinds must be of the letters e, i, u, f, d, n, - and *, got ", kinds);
        form.fields.push_back({kind, form.record_bytes});
        form.record_bytes += kind == '-' || kind == '*' ? 0 : kind == 'f' ? 4 : 8;
        form.has_names |= kind == 'n';
    }
    std::unique_ptr<PooledBuffer> buffer;
    ParsedText parsed;
    {
        const GilRelease release;
        buffer = std::make_unique<PooledBuffer>(
            checked_multiply(count_lines(lines), form.record_bytes, "the records"));
        parsed = parse_text(lines, form, static_cast<uint8_t *>(buffer->raw()));
    }
    auto *const records = static_cast<uint8_t *>(buffer->raw());
    Fault fault;
    if (parsed.fault)
        fault.emplace(parsed.fault->line, parsed.fault->num_fields, parsed.fault->field,
                      parsed.fault->begin, parsed.fault->end);
    return {owned_vector(records, parsed.num_rows * form.record_bytes, std::move(buffer)),
            parsed.num_comments, fault};
}

std::tuple<nb::list, NumpyVector<int64_t>, NumpyVector<int64_t>> encode(const nb::bytes &text,
                                                                        const InputArray &places) {
    const std::string_view lines = view_of(text);
    const auto *const data = input_data<uint32_t>(places, "places", "uint32");
    const int64_t num_names = length(places) / 2;
    for (int64_t i = 0; i < num_names; ++i)
        if (data[2 * i] > lines.size() || data[2 * i + 1] > lines.size() - data[2 * i])
            throw out_of_range("places must lie within the text");
    NumpyVector<int64_t> codes = pooled_vector<int64_t>(num_names);
    auto first = without_gil([&] { return encode_names(lines, data, num_names, codes.data()); });
    nb::list names;
    for (const int64_t i : first) names.append(nb::bytes(lines.data() + data[2 * i], data[2 * i + 1]));
    return {names, codes, take_vector(std::move(first))};
}

}  // namespace

void bind_text_table(nb::module_ &m) {
    m.def("parse_text", parse, "text"_a, "kinds"_a, "separator"_a, "comments"_a, nb::kw_only(),
          "skip_blank"_a = false, "allow_nan"_a = true, "low"_a = std::numeric_limits<int64_t>::min(),
          "high"_a = std::numeric_limits<int64_t>::max());
    m.def("split_text", split, "line"_a, "separator"_a);
    m.def("encode_names", encode, "text"_a, "places"_a);
}
