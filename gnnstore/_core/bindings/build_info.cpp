// Facts on how this module was compiled, which `gnnstore info` puts into a bug report.
#include "bindings/bindings.h"

void bind_build_info(nanobind::module_ &m) {
    m.def("build_info", [] { return GNNSTORE_BUILD_INFO; });  // defined by CMakeLists.txt
}
