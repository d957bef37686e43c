#include <nanobind/stl/vector.h>

#include "bindings/arrays.h"
#include "bindings/storage.h"
#include "kernels/files.h"
#include "kernels/mapping.h"

using namespace gnnstore;
using namespace nb::literals;

namespace {

Advice parse_advice(const std::string &advice) {
    if (advice == "normal") return Advice::normal;
    if (advice == "random") return Advice::random;
    if (advice == "sequential") return Advice::sequential;
    throw std::invalid_argument("advice must be 'normal', 'random' or 'sequential', got '" +
                                advice + "'");
}

NumpyVector<const uint8_t> map_files(nb::handle paths, const std::vector<int64_t> &body_bytes,
                                     const char *advice) {
    const std::vector<std::string> names = fs_paths(paths);
    const Advice kind = parse_advice(advice);
    std::unique_ptr<Mapping> mapping;
    {
        const GilRelease release;
        mapping = std::make_unique<Mapping>(names, body_bytes, kind);
    }
    const uint8_t *data = mapping->data();
    const int64_t size = mapping->size();
    return owned_vector(data, size, std::move(mapping));
}

template <void (*rename)(const std::string &, const std::string &)>
void rename_paths(nb::handle source, nb::handle target) {
    const std::string from = fs_path(source), to = fs_path(target);
    const GilRelease release;
    rename(from, to);
}

}  // namespace

void bind_files(nb::module_ &m) {
    m.def("map_files", map_files, "paths"_a, "body_bytes"_a, "advice"_a = "normal");
    m.def("rename_noreplace", rename_paths<rename_noreplace>, "source"_a, "target"_a);
    m.def("rename_exchange", rename_paths<rename_exchange>, "a"_a, "b"_a);
}
