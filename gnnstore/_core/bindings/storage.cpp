// The storage group: what the store is read, written and built with.
#include "bindings/bindings.h"
#include "bindings/storage.h"

#include "bindings/arrays.h"
#include "kernels/base/errors.h"

namespace {

// OSError(errno, message, filename[, None, filename2]), which Python turns into
// FileNotFoundError and its siblings by errno.
void raise_os_error(const gnnstore::IoError &error) {
    namespace nb = nanobind;
    const auto decode = [](const std::string &path) {
        return nb::steal(
            PyUnicode_DecodeFSDefaultAndSize(path.data(), static_cast<Py_ssize_t>(path.size())));
    };
    const nb::object path = decode(error.path);
    if (!path.is_valid()) return;  // the decoding error stands
    nb::object exception;
    if (error.other_path.empty()) {
        exception = nb::steal(
            PyObject_CallFunction(PyExc_OSError, "isO", error.code, error.what(), path.ptr()));
    } else {
        const nb::object other = decode(error.other_path);
        if (!other.is_valid()) return;
        exception =
            nb::steal(PyObject_CallFunction(PyExc_OSError, "isOOO", error.code, error.what(),
                                            path.ptr(), Py_None, other.ptr()));
    }
    if (!exception.is_valid()) return;
    PyErr_SetObject(reinterpret_cast<PyObject *>(Py_TYPE(exception.ptr())), exception.ptr());
}

}  // namespace

void bind_storage(nanobind::module_ &m) {
    nanobind::register_exception_translator([](const std::exception_ptr &pointer, void *) {
        try {
            std::rethrow_exception(pointer);
        } catch (const gnnstore::IoError &error) {
            raise_os_error(error);
        }
    });
    bind_checksums(m);
    bind_files(m);
    bind_faults(m);
    bind_rows(m);
    bind_reader(m);
    bind_pack(m);
    bind_cache_slots(m);
    bind_pool(m);
    bind_build(m);
    bind_edge_runs(m);
    bind_id_bitmap(m);
    bind_learned_rows(m);
    bind_short_numbers(m);
    bind_text_table(m);
}
