// Declares what module.cpp binds; each function lives in a file of its own.
#pragma once

#include <nanobind/nanobind.h>

void bind_storage(nanobind::module_ &m);   // checksums, mappings, rows, buffers, files
void bind_sampling(nanobind::module_ &m);  // neighbour sampling and relabelling
void bind_edges_by_node(nanobind::module_ &m);  // batches in CSR
void bind_resident_csc(nanobind::module_ &m);  // partitions that lie in memory together
void bind_planning(nanobind::module_ &m);  // plans of caches
void bind_fixed_cache(nanobind::module_ &m);  // and of one whose rows do not change
void bind_build_info(nanobind::module_ &m);  // compiler and flags
