// Arrays and paths between Python and the kernels: checked by hand rather than by
// nanobind's signatures, so that a wrong argument gets a message that names it.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "bindings/gil.h"
#include "kernels/base/errors.h"
#include "kernels/base/pooled_array.h"

namespace gnnstore {

namespace nb = nanobind;

// Any array in main memory, to be read or to be written. Never converted or copied.
using InputArray = nb::ndarray<nb::ro, nb::device::cpu>;
using OutputArray = nb::ndarray<nb::device::cpu>;

template <class T>
using NumpyVector = nb::ndarray<nb::numpy, T, nb::ndim<1>, nb::c_contig>;

template <class Array>
void check_vector(const Array &array, const char *name) {
    require(array.ndim() == 1, name, " must have one dimension, got ", array.ndim());
    if (array.shape(0) > 1 && array.stride(0) != 1)
        throw invalid(name, " must be contiguous; pass numpy.ascontiguousarray(", name, ")");
}

// Throws a TypeError: "ids must be int32 or int64, got float32".
[[noreturn]] void refuse_dtype(const char *name, const char *expected, nb::dlpack::dtype found);

// The elements of a contiguous vector of exactly this dtype.
template <class T>
const T *input_data(const InputArray &array, const char *name, const char *expected) {
    check_vector(array, name);
    if (array.dtype() != nb::dtype<T>()) refuse_dtype(name, expected, array.dtype());
    return static_cast<const T *>(array.data());
}

template <class T>
T *output_data(const OutputArray &array, const char *name, const char *expected) {
    check_vector(array, name);
    if (array.dtype() != nb::dtype<T>()) refuse_dtype(name, expected, array.dtype());
    return static_cast<T *>(array.data());
}

// May be called before the elements are asked for; only that call can name the array.
template <class Array>
int64_t length(const Array &array) {
    require(array.ndim() == 1, "an array must have one dimension, got ", array.ndim());
    return static_cast<int64_t>(array.shape(0));
}

// For arrays that have an entry for each of the same things.
template <class First, class... Others>
void check_lengths(const char *names, const First &first, const Others &...others) {
    if (((length(others) != length(first)) || ...))
        throw invalid(names, " must have the same length, got ",
                      text_of(length(first), text_of(" and ", length(others))...));
}

// Rows of bytes by slot, [num_slots, row_bytes]: a table of its own, or a column of a wider one.
template <class Byte>
struct SlotRows {
    Byte *data;
    int64_t num_slots, row_bytes;
    int64_t slot_bytes;  // from one row to the next
};

template <class Byte, class Array>
SlotRows<Byte> slot_rows(const Array &array, const char *name) {
    if (array.dtype() != nb::dtype<uint8_t>()) refuse_dtype(name, "uint8", array.dtype());
    require(array.ndim() == 2, name, " must have two dimensions, got ", array.ndim());
    SlotRows<Byte> rows{static_cast<Byte *>(array.data()),
                        static_cast<int64_t>(array.shape(0)),
                        static_cast<int64_t>(array.shape(1)),
                        static_cast<int64_t>(array.shape(1))};
    if (rows.num_slots == 0) return rows;
    if (rows.num_slots > 1) rows.slot_bytes = array.stride(0);
    if ((rows.row_bytes > 1 && array.stride(1) != 1) || rows.slot_bytes < rows.row_bytes)
        throw invalid(name, " must have its rows one behind the other, each contiguous");
    return rows;
}

// Calls use(pointer) with the elements of an int32 or int64 vector.
template <class Use>
auto with_integers(const InputArray &array, const char *name, const Use &use) {
    if (array.dtype() == nb::dtype<int32_t>())
        return use(input_data<int32_t>(array, name, "int32 or int64"));
    return use(input_data<int64_t>(array, name, "int32 or int64"));
}

// Calls use(ends, num_edges) with the elements of an array of edges [2, m].
template <class Use>
auto with_edge_index(const InputArray &edge_index, const Use &use) {
    require(edge_index.ndim() == 2 && edge_index.shape(0) == 2,
            "edge_index must have the shape [2, m]");
    const auto num_edges = static_cast<int64_t>(edge_index.shape(1));
    require(num_edges == 0 || (edge_index.stride(0) == num_edges && edge_index.stride(1) == 1),
            "edge_index must be contiguous");
    if (edge_index.dtype() == nb::dtype<int32_t>())
        return use(static_cast<const int32_t *>(edge_index.data()), num_edges);
    if (edge_index.dtype() == nb::dtype<int64_t>())
        return use(static_cast<const int64_t *>(edge_index.data()), num_edges);
    refuse_dtype("edge_index", "int32 or int64", edge_index.dtype());
}

// An array over memory that `owner` keeps alive; the owner dies with the array's last view.
template <class T, class Owner>
NumpyVector<T> owned_vector(T *data, int64_t size, std::unique_ptr<Owner> owner) {
    using Object = std::remove_const_t<Owner>;
    nb::capsule capsule(owner.get(), [](void *p) noexcept { delete static_cast<Object *>(p); });
    owner.release();
    return NumpyVector<T>(data, {static_cast<size_t>(size)}, capsule);
}

// Copies nothing: the vector moves into the array's owner.
template <class T>
NumpyVector<T> take_vector(std::vector<T> values) {
    auto owner = std::make_unique<std::vector<T>>(std::move(values));
    T *data = owner->data();
    const auto size = static_cast<int64_t>(owner->size());
    return owned_vector(data, size, std::move(owner));
}

// A new array of size elements, their values unspecified, in a buffer of the pool: mapped
// already, or at least of huge pages.
template <class T>
NumpyVector<T> pooled_vector(int64_t size) {
    const int64_t num_bytes = checked_multiply(size, sizeof(T), "the array");
    auto buffer = without_gil([&] { return std::make_unique<PooledBuffer>(num_bytes); });
    T *data = static_cast<T *>(buffer->raw());
    return owned_vector(data, size, std::move(buffer));
}

// A str, bytes or os.PathLike as the bytes that the system takes (PEP 383).
std::string fs_path(nb::handle path);
std::vector<std::string> fs_paths(nb::handle paths);

}  // namespace gnnstore
