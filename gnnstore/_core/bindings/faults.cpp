// Makes system calls of the core fail, for tests.
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <tuple>

#include "bindings/storage.h"
#include "kernels/base/system.h"

using namespace gnnstore;
namespace nb = nanobind;
using namespace nb::literals;

namespace {

using FaultTuple = std::tuple<std::string, int64_t, int64_t, int, int64_t>;

void set_fault_tuples(const std::vector<FaultTuple> &tuples) {
    std::vector<Fault> faults;
    for (const auto &[call, skip, times, code, bytes] : tuples)
        faults.push_back({parse_system_call(call), skip, times, code, bytes});
    set_faults(faults);
}

}  // namespace

void bind_faults(nb::module_ &m) {
    m.def("set_faults", set_fault_tuples, "faults"_a);
    m.def("num_faults", num_faults);
}
