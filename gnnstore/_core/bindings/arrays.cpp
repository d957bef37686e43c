#include "bindings/arrays.h"

namespace gnnstore {
namespace {

std::string dtype_name(nb::dlpack::dtype dtype) {
    using Code = nb::dlpack::dtype_code;
    const std::string bits = std::to_string(dtype.bits);
    switch (static_cast<Code>(dtype.code)) {
        case Code::Int: return "int" + bits;
        case Code::UInt: return "uint" + bits;
        case Code::Float: return "float" + bits;
        case Code::Complex: return "complex" + bits;
        case Code::Bool: return "bool";
        default: return "another type of " + bits + " bits";
    }
}

}  // namespace

void refuse_dtype(const char *name, const char *expected, nb::dlpack::dtype found) {
    const std::string message =
        std::string(name) + " must be " + expected + ", got " + dtype_name(found);
    throw nb::type_error(message.c_str());
}

std::string fs_path(nb::handle path) {
    PyObject *encoded = nullptr;
    if (!PyUnicode_FSConverter(path.ptr(), &encoded)) throw nb::python_error();
    const nb::object owner = nb::steal(encoded);
    return {PyBytes_AsString(encoded), static_cast<size_t>(PyBytes_Size(encoded))};
}

std::vector<std::string> fs_paths(nb::handle paths) {
    std::vector<std::string> result;
    // A lone path is a sequence of one-letter paths to Python, and never what was meant.
    if (PyUnicode_Check(paths.ptr()) || PyBytes_Check(paths.ptr()))
        throw nb::type_error("paths must be a list of paths, got a single one");
    for (const nb::handle path : nb::iter(paths)) result.push_back(fs_path(path));
    return result;
}

}  // namespace gnnstore
