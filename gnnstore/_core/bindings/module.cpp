// The extension module: one bind_* function per group of kernels.
#include "bindings/bindings.h"

NB_MODULE(_kernels, m) {
    // An object may outlive the interpreter, as a loader does that was passed to a spawned worker of
    // another loader: 25 lines on stderr about it do not help.
    nanobind::set_leak_warnings(false);
    m.doc() = "Compiled kernels of gnnstore. Import them from gnnstore._core.";
    bind_storage(m);
    bind_sampling(m);
    bind_edges_by_node(m);
    bind_resident_csc(m);
    bind_planning(m);
    bind_fixed_cache(m);
    bind_build_info(m);
}
