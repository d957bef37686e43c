#include "kernels/pool.h"

#include "bindings/arrays.h"
#include "bindings/storage.h"

using namespace gnnstore;
using namespace nb::literals;

namespace {

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

void pool_trim(int64_t max_free_bytes) {
    const GilRelease release;
    BufferPool::instance().trim(max_free_bytes);
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
    m.def("pool_empty", pooled_vector<uint8_t>, "num_bytes"_a);
    m.def("pool_stats", pool_stats);
    m.def("pool_trim", pool_trim, "max_free_bytes"_a = 0);
    m.def("pool_set_limit", pool_set_limit, "max_free_bytes"_a);
    m.def("pool_exchange", pool_exchange, "exchanges"_a);
}
