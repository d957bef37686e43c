// Declares the parts of the storage group; each lives in a file of its own.
#pragma once

#include <nanobind/nanobind.h>

void bind_checksums(nanobind::module_ &m);
void bind_files(nanobind::module_ &m);
void bind_faults(nanobind::module_ &m);
void bind_rows(nanobind::module_ &m);
void bind_reader(nanobind::module_ &m);
void bind_pack(nanobind::module_ &m);
void bind_cache_slots(nanobind::module_ &m);
void bind_pool(nanobind::module_ &m);
void bind_build(nanobind::module_ &m);
void bind_edge_runs(nanobind::module_ &m);
void bind_id_bitmap(nanobind::module_ &m);
void bind_learned_rows(nanobind::module_ &m);
void bind_short_numbers(nanobind::module_ &m);
void bind_text_table(nanobind::module_ &m);
