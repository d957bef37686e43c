#include "kernels/csc_build.h"

#include <algorithm>
#include <atomic>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "kernels/column_sort.h"
#include "kernels/errors.h"
#include "kernels/parallel.h"

namespace gnnstore {
namespace {

constexpr int64_t count_task_edges = 1 << 18;
constexpr int64_t sort_task_edges = 1 << 18;

// Edges are taken in groups: first the lines that a group will change are prefetched, then
// they are changed. A random write that waits for memory costs ten that do not.
constexpr int64_t group_edges = 256;

inline void prefetch_for_write(const void *p) { __builtin_prefetch(p, 1); }

template <class Id>
bool all_below(const Id *ids, int64_t num_ids, int64_t bound) {
    using Unsigned = std::make_unsigned_t<Id>;  // a negative id is a huge one
    Unsigned largest = 0;
    for (int64_t i = 0; i < num_ids; ++i)
        largest = std::max(largest, static_cast<Unsigned>(ids[i]));
    return static_cast<uint64_t>(largest) < static_cast<uint64_t>(bound);
}

template <class Id>
[[noreturn]] void throw_first_bad_id(const EdgeList<Id> &edges) {
    for (int64_t i = 0; i < edges.num_edges; ++i) {
        const auto refuse = [i](const char *end, Id id, int64_t bound) {
            throw std::out_of_range(std::string("the ") + end + " of edge " + std::to_string(i) +
                                    " is " + std::to_string(id) + ", outside [0, " +
                                    std::to_string(bound) + ")");
        };
        if (edges.sources[i] < 0 || edges.sources[i] >= edges.num_sources)
            refuse("source", edges.sources[i], edges.num_sources);
        if (edges.targets[i] < 0 || edges.targets[i] >= edges.num_targets)
            refuse("target", edges.targets[i], edges.num_targets);
    }
    throw std::out_of_range("an edge's id is out of range, but was changed meanwhile");
}

// counts[t] becomes the in-degree of t. Checks all ids on the way.
template <class Id>
void count_targets(const EdgeList<Id> &edges, int64_t *counts, int num_threads) {
    const int64_t num_edges = edges.num_edges;
    const int64_t num_tasks = (num_edges + count_task_edges - 1) / count_task_edges;
    std::atomic<bool> bad{false};
    run_workers(num_threads, num_tasks, [&](TaskQueue &queue) {
        for (int64_t task; queue.take(task);) {
            const int64_t end = std::min(num_edges, (task + 1) * count_task_edges);
            for (int64_t i = task * count_task_edges; i < end; i += group_edges) {
                const int64_t size = std::min(group_edges, end - i);
                const Id *targets = edges.targets + i;
                if (!all_below(targets, size, edges.num_targets) ||
                    !all_below(edges.sources + i, size, edges.num_sources)) {
                    bad = true;
                    return queue.close();
                }
                for (int64_t k = 0; k < size; ++k) prefetch_for_write(counts + targets[k]);
                if (num_threads == 1)
                    for (int64_t k = 0; k < size; ++k) ++counts[targets[k]];
                else
                    for (int64_t k = 0; k < size; ++k)
                        std::atomic_ref(counts[targets[k]]).fetch_add(1, std::memory_order_relaxed);
            }
        }
    });
    if (bad) throw_first_bad_id(edges);
}

// Writes the edges whose target lies in [begin, end) to their columns, in the order of the
// list; next[t] is where the next edge of t goes.
template <class Id, class EdgeId>
void scatter(const EdgeList<Id> &edges, int64_t begin, int64_t end, int64_t *next, Id *indices,
             EdgeId *edge_id) {
    const auto width = static_cast<uint64_t>(end - begin);
    int64_t mine[group_edges], place[group_edges];
    for (int64_t first = 0; first < edges.num_edges; first += group_edges) {
        const int64_t last = std::min(edges.num_edges, first + group_edges);
        int64_t size = 0;
        for (int64_t i = first; i < last; ++i) {  // no branch: its outcome is random
            mine[size] = i;
            size += static_cast<uint64_t>(edges.targets[i] - begin) < width;
        }
        for (int64_t k = 0; k < size; ++k) prefetch_for_write(next + edges.targets[mine[k]]);
        for (int64_t k = 0; k < size; ++k) {
            place[k] = next[edges.targets[mine[k]]]++;
            prefetch_for_write(indices + place[k]);
            if (edge_id) prefetch_for_write(edge_id + place[k]);
        }
        for (int64_t k = 0; k < size; ++k) {
            indices[place[k]] = edges.sources[mine[k]];
            if (edge_id) edge_id[place[k]] = static_cast<EdgeId>(mine[k]);
        }
    }
}

// Splits [0, num_columns) where num_parts equal shares of the edges begin: starts[c] is the
// position of column c's first edge.
std::vector<int64_t> split_columns(const int64_t *starts, int64_t num_columns, int64_t num_edges,
                                   int64_t num_parts) {
    std::vector<int64_t> bounds(static_cast<size_t>(num_parts) + 1, num_columns);
    bounds[0] = 0;
    for (int64_t part = 1; part < num_parts; ++part) {
        const int64_t edge = num_edges / num_parts * part;
        bounds[static_cast<size_t>(part)] =
            std::lower_bound(starts, starts + num_columns, edge) - starts;
    }
    return bounds;
}

}  // namespace

template <class Id, class EdgeId>
void csc_from_coo(const EdgeList<Id> &edges, int64_t *indptr, Id *indices, EdgeId *edge_id,
                  int num_threads) {
    check_num_threads(num_threads);
    const int64_t num_columns = edges.num_targets;
    // One place further on than where it belongs: counts become starts, and starts become,
    // edge by edge, the ends that indptr asks for. No array of cursors is needed.
    int64_t *next = indptr + 1;
    std::fill(indptr, indptr + num_columns + 1, 0);
    count_targets(edges, next, num_threads);
    int64_t sum = 0;
    for (int64_t column = 0; column < num_columns; ++column)
        sum += std::exchange(next[column], sum);

    // A thread reads the whole list for the edges of one range of targets: reading in order
    // is cheap, and columns keep the list's order without a lock. Two ranges even for one
    // thread, since half the output is cached better (27 instead of 36 ns an edge).
    const int64_t num_ranges = std::max(2, num_threads);
    const auto owners = split_columns(next, num_columns, edges.num_edges, num_ranges);
    run_workers(num_threads, num_ranges, [&](TaskQueue &queue) {
        for (int64_t part; queue.take(part);) {
            const auto p = static_cast<size_t>(part);
            if (owners[p] < owners[p + 1])
                scatter(edges, owners[p], owners[p + 1], next, indices, edge_id);
        }
    });

    const int64_t num_tasks = edges.num_edges / sort_task_edges + 1;
    const auto tasks = split_columns(indptr, num_columns, edges.num_edges, num_tasks);
    run_workers(num_threads, num_tasks, [&](TaskQueue &queue) {
        ColumnSorter<Id, EdgeId> sort(edges.num_sources);
        for (int64_t task; queue.take(task);) {
            const auto t = static_cast<size_t>(task);
            for (int64_t column = tasks[t]; column < tasks[t + 1]; ++column) {
                const int64_t begin = indptr[column];
                sort(indices + begin, edge_id ? edge_id + begin : nullptr,
                     indptr[column + 1] - begin);
            }
        }
    });
}

template void csc_from_coo(const EdgeList<int32_t> &, int64_t *, int32_t *, int32_t *, int);
template void csc_from_coo(const EdgeList<int32_t> &, int64_t *, int32_t *, int64_t *, int);
template void csc_from_coo(const EdgeList<int64_t> &, int64_t *, int64_t *, int32_t *, int);
template void csc_from_coo(const EdgeList<int64_t> &, int64_t *, int64_t *, int64_t *, int);

}  // namespace gnnstore
