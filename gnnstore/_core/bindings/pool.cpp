#include "kernels/base/pool.h"

#include "bindings/arrays.h"
#include "bindings/storage.h"

#ifdef __GLIBC__
#include <malloc.h>
#endif

using namespace gnnstore;
using namespace nb::literals;

namespace {

// Below this, its own threshold for returning memory to the system, malloc serves from memory that
// it keeps, and recycling gains nothing.
constexpr int64_t min_pooled_bytes = 128 * 1024;

nb::object empty(const nb::tuple &shape, nb::handle dtype) {
    const nb::module_ numpy = nb::module_::import_("numpy");
    const nb::object element = numpy.attr("dtype")(dtype);
    auto num_bytes = nb::cast<int64_t>(element.attr("itemsize"));
    for (const nb::handle extent : shape)
        num_bytes = checked_multiply(num_bytes, nb::cast<int64_t>(extent), "the array");
    if (num_bytes < min_pooled_bytes) return numpy.attr("empty")(shape, element);
    const nb::object buffer = nb::cast(pooled_vector<uint8_t>(num_bytes));
    return buffer.attr("view")(element).attr("reshape")(shape);
}

void pool_trim(int64_t max_free_bytes) {
    const GilRelease release;
    BufferPool::instance().trim(max_free_bytes);
}

// glibc keeps blocks of up to 32 MiB once one of them has been freed, and allocating and freeing
// arrays alternately leaves holes: 80 MB on top of a budget of 300, after superbatches of 38
// batches of 75,000 nodes had been sampled and planned.
void release_heap() {
    const GilRelease release;
#ifdef __GLIBC__
    malloc_trim(0);
#endif
}

void release_memory() {
    pool_trim(0);
    release_heap();
}

nb::dict pool_stats() {
    const PoolStats stats = BufferPool::instance().stats();
    nb::dict result;
    result["buffers_in_use"] = stats.buffers_in_use;
    result["bytes_in_use"] = stats.bytes_in_use;
    result["bytes_free"] = stats.bytes_free;
    result["hits"] = stats.hits;
    result["misses"] = stats.misses;
    return result;
}

void pool_set_limit(int64_t max_free_bytes) {
    const GilRelease release;
    BufferPool::instance().set_limit(max_free_bytes);
}

void pool_exchange(bool exchanges) {
    const GilRelease release;
    BufferPool::instance().exchange(exchanges);
}

}  // namespace

void bind_pool(nb::module_ &m) {
    m.def("empty", empty, "shape"_a, "dtype"_a,
          nb::sig("def empty(shape: tuple, dtype: object) -> NDArray"));
    m.def("release_heap", release_heap);
    m.def("release_memory", release_memory);
    m.def("pool_empty", pooled_vector<uint8_t>, "num_bytes"_a);
    m.def("pool_stats", pool_stats);
    m.def("pool_trim", pool_trim, "max_free_bytes"_a = 0);
    m.def("pool_set_limit", pool_set_limit, "max_free_bytes"_a);
    m.def("pool_exchange", pool_exchange, "exchanges"_a);
}
