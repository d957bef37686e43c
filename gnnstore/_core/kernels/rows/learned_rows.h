// Rows that are learned: where they lie in memory, how they begin, and how gradients change them.
//
// A table of rows is cut into partitions of equally many rows, and memory into slots that hold a
// partition each: its values, [rows_per_slot * dim] floats, then the state that its optimizer keeps
// for each row. A resident row is named by slot * rows_per_slot + its place in the partition.
#pragma once

#include <cstdint>

namespace gnnstore {

// Finds the resident rows of nodes. `place` gives the row of a node in the whole table, null where
// they are the same; slots[k] is the slot of partition k, or negative. Returns the position of the
// first node whose partition has none, else num_ids. Throws std::out_of_range for an id that is no
// node, and std::invalid_argument where place is not of the table.
template <class Place>
int64_t resident_rows(const int64_t *ids, int64_t num_ids, const Place *place, int64_t num_nodes,
                      int64_t rows_per_slot, const int32_t *slots, int64_t num_partitions,
                      int64_t *out);

enum class Distribution { uniform, normal };

// Fills out, [num_ids * dim], with values that depend on (seed, id, column) alone: uniform in
// [-scale, scale), or normal with standard deviation scale.
template <class Id>
void initial_rows(const Id *ids, int64_t num_ids, float *out, int64_t dim,
                  Distribution distribution, float scale, uint64_t seed, int num_threads);

enum class UpdateRule { sgd, adagrad, rowwise_adagrad, sparse_adam };

struct RowUpdate {
    UpdateRule rule;
    float rate;  // what the rule multiplies a step with
    float eps;
    float beta1, beta2;  // of sparse_adam
};

struct SlotLayout {
    int64_t dim;
    int64_t rows_per_slot;
    int64_t slot_floats;
    int64_t num_slots;

    // Floats of state for each row.
    static int64_t state_floats(UpdateRule rule, int64_t dim);
    // Throws std::invalid_argument unless slots of this rule hold their rows.
    void check(UpdateRule rule, int64_t num_floats) const;
};

// Changes rows by their gradients, [num_rows * dim]. Gradients of a row that comes several times are
// summed first, in the order in which they come, so that nothing depends on the number of threads.
void update_rows(float *table, int64_t num_floats, const SlotLayout &layout, const int64_t *rows,
                 int64_t num_rows, const float *gradients, int64_t num_gradients,
                 const RowUpdate &update, int num_threads);

}  // namespace gnnstore
