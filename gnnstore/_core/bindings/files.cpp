#include <nanobind/stl/vector.h>

#include <filesystem>
#include <system_error>
#include <vector>

#include "bindings/arrays.h"
#include "bindings/storage.h"
#include "kernels/files/files.h"
#include "kernels/files/mapping.h"

using namespace gnnstore;
using namespace nb::literals;

namespace {

Advice parse_advice(const std::string &advice) {
    if (advice == "normal") return Advice::normal;
    if (advice == "random") return Advice::random;
    if (advice == "sequential") return Advice::sequential;
    throw invalid("advice must be 'normal', 'random' or 'sequential', got '", advice, "'");
}

NumpyVector<const uint8_t> map_files(nb::handle paths, const std::vector<int64_t> &body_bytes,
                                     const char *advice) {
    const std::vector<std::string> names = fs_paths(paths);
    const Advice kind = parse_advice(advice);
    auto mapping = without_gil([&] { return std::make_unique<Mapping>(names, body_bytes, kind); });
    const uint8_t *data = mapping->data();
    const int64_t size = mapping->size();
    return owned_vector(data, size, std::move(mapping));
}

// Goes on with the others where something cannot be removed. Links are removed, not followed.
void remove_what_can_be(const std::filesystem::path &tree) {
    std::error_code code;
    if (std::filesystem::is_directory(std::filesystem::symlink_status(tree, code))) {
        std::vector<std::filesystem::path> entries;
        std::filesystem::directory_iterator entry(tree, code), end;
        for (; !code && entry != end; entry.increment(code)) entries.push_back(entry->path());
        for (const std::filesystem::path &each : entries) remove_what_can_be(each);
    }
    std::filesystem::remove(tree, code);
}

template <void (*rename)(const std::string &, const std::string &)>
void rename_paths(nb::handle source, nb::handle target) {
    const std::string from = fs_path(source), to = fs_path(target);
    const GilRelease release;
    rename(from, to);
}

void remove_tree(nb::handle path) {
    const std::filesystem::path tree = fs_path(path);
    const GilRelease release;
    std::error_code code;
    if (std::filesystem::is_directory(std::filesystem::symlink_status(tree, code)))
        remove_what_can_be(tree);
}

}  // namespace

void bind_files(nb::module_ &m) {
    m.def("map_files", map_files, "paths"_a, "body_bytes"_a, "advice"_a = "normal");
    m.def("rename_noreplace", rename_paths<rename_noreplace>, "source"_a, "target"_a);
    m.def("remove_tree", remove_tree, "path"_a);
    m.def("rename_exchange", rename_paths<rename_exchange>, "a"_a, "b"_a);
}
