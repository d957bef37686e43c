#include "kernels/rows/cache_slots.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <string>
#include <vector>

#include "kernels/base/check_ids.h"
#include "kernels/base/errors.h"
#include "kernels/base/parallel.h"

namespace gnnstore {
namespace {

// How many iterations ahead the note of a slot is requested: it is 8 bytes in a table that no
// cache holds.
constexpr int64_t nodes_distance = 32;
// Copied by a thread at a time: 2 MiB take half a millisecond, ten times as long as starting one.
constexpr int64_t bytes_per_task = int64_t{2} << 20;

void check_row_bytes(int64_t row_bytes) {
    require(row_bytes >= 1, "row_bytes must be at least 1, got ", row_bytes);
}

}  // namespace

template <class Id>
void check_cached(const int64_t *nodes, int64_t num_slots, const int32_t *slots, const Id *ids,
                  int64_t num_ids) {
    using std::to_string;
    for (int64_t k = 0; k < num_ids; ++k) {
        const int64_t ahead = slots[std::min(k + nodes_distance, num_ids - 1)];
        if (ahead >= 0) __builtin_prefetch(nodes + ahead);
        const int64_t slot = slots[k];
        if (slot < 0) continue;
        if (slot >= num_slots)
            throw out_of_range("slot ", slot, " at position ", k, " is outside the cache of ",
                               num_slots, " rows");
        if (nodes[slot] != ids[k])
            throw invalid("slot ", slot, " should hold row ", ids[k], ", but ",
                          (nodes[slot] < 0 ? "holds none" : "holds row " + to_string(nodes[slot])));
    }
}

template void check_cached(const int64_t *, int64_t, const int32_t *, const int32_t *, int64_t);
template void check_cached(const int64_t *, int64_t, const int32_t *, const int64_t *, int64_t);

int64_t copy_from_slots(const CachedRows &cache, int64_t num_ids, int64_t row_bytes, uint8_t *out,
                        int64_t out_bytes, int num_threads) {
    check_row_bytes(row_bytes);
    check_num_threads(num_threads);
    const int64_t wanted = checked_multiply(num_ids, row_bytes, "the output");
    require(out_bytes == wanted, "out must hold ", num_ids, " rows of ", row_bytes, " bytes = ",
            wanted, " bytes, got ", out_bytes);
    check_slots(cache, num_ids);
    if (overlap(out, out_bytes, cache.slots, num_ids))
        throw invalid("out overlaps the slots");
    // A multiple of 64 rows, so that every task's output begins on a line if the first one does.
    const int64_t rows_per_task = std::max<int64_t>(1, bytes_per_task / row_bytes / 64) * 64;
    const int64_t num_tasks = num_ids / rows_per_task + (num_ids % rows_per_task != 0);
    std::atomic<int64_t> num_copied{0};
    run_workers(num_threads, num_tasks, [&](TaskQueue &queue) {
        // Its own, for what has gone around the caches is settled by the thread that wrote it.
        const RowCopy copy(row_bytes, out, out_bytes);
        for (int64_t task; queue.take(task);) {
            const int64_t begin = task * rows_per_task;
            const int64_t size = std::min(num_ids - begin, rows_per_task);
            CachedRows part = cache;
            part.slots += begin;
            CachedCopy cached(part, size, row_bytes, out + begin * row_bytes, copy);
            cached.advance(size);
            num_copied += cached.num_copied();
        }
    });
    return num_copied;
}

int64_t decode_from_slots(const CachedRows &cache, int64_t num_ids, const DenseRows &missed,
                          const Decoding &decoding, uint8_t *out, int64_t out_bytes,
                          int num_threads) {
    const int64_t row_bytes = decoding.width, out_row_bytes = decoding.row_bytes();
    decoding.check(row_bytes, out);
    check_row_bytes(row_bytes);
    check_num_threads(num_threads);
    const int64_t wanted = checked_multiply(num_ids, out_row_bytes, "the output");
    require(out_bytes == wanted, "out must hold ", wanted, " bytes, got ", out_bytes);
    check_slots(cache, num_ids);
    if (overlap(out, out_bytes, cache.slots, num_ids) ||
        overlap(out, out_bytes, missed.data, missed.num_bytes))
        throw invalid("out overlaps the slots or the rows");
    // As in gather_decoded, a task's rows are copied first and decoded then.
    const int64_t task_rows = rows_per_task(out_row_bytes);
    const int64_t num_tasks = num_ids / task_rows + (num_ids % task_rows != 0);
    const auto rows_of = [&](int64_t task) {
        return std::min(num_ids - task * task_rows, task_rows);
    };
    std::vector<int64_t> missed_before(static_cast<size_t>(num_tasks + 1));
    for (int64_t task = 0; task < num_tasks; ++task) {
        const int32_t *slots = cache.slots + task * task_rows;
        const auto found = static_cast<size_t>(task);
        missed_before[found + 1] =
            missed_before[found] +
            std::count_if(slots, slots + rows_of(task), [](int32_t slot) { return slot < 0; });
    }
    const int64_t num_missed = missed_before.back();
    require(missed.num_bytes == num_missed * row_bytes, num_missed, " rows of ", row_bytes,
            " bytes have no slot, and there are ", missed.num_bytes, " bytes of rows");
    const bool streams = should_stream(out, out_bytes, out_row_bytes);
    const DecodeRows decode = choose_decode(decoding.type);
    const int64_t ahead = rows_ahead(row_bytes);
    run_workers(num_threads, num_tasks, [&](TaskQueue &queue) {
        std::vector<uint8_t> scratch(static_cast<size_t>(std::min(num_ids, task_rows) *
                                                         row_bytes));
        for (int64_t task; queue.take(task);) {
            const int64_t begin = task * task_rows, size = rows_of(task);
            const int32_t *slots = cache.slots + begin;
            const auto prefetch = [&](int64_t k) {
                if (slots[k] >= 0)
                    prefetch_row(cache.table + slots[k] * cache.slot_bytes, row_bytes);
            };
            const uint8_t *next =
                missed.data + missed_before[static_cast<size_t>(task)] * row_bytes;
            for (int64_t k = 0; k < std::min(ahead, size); ++k) prefetch(k);
            for (int64_t k = 0; k < size; ++k) {
                if (k + ahead < size) prefetch(k + ahead);
                const uint8_t *row = next;
                if (slots[k] >= 0)
                    row = cache.table + slots[k] * cache.slot_bytes;
                else
                    next += row_bytes;
                std::memcpy(scratch.data() + k * row_bytes, row, static_cast<size_t>(row_bytes));
            }
            decode(scratch.data(), size, decoding, out + begin * out_row_bytes, streams);
        }
    });
    return num_ids - num_missed;
}

void copy_to_slots(const uint8_t *rows, int64_t num_rows, const SlotChanges &changes,
                   int64_t row_bytes, const SlotTable &cache) {
    check_row_bytes(row_bytes);
    check_ids(changes.positions, changes.size, num_rows);
    check_ids(changes.slots, changes.size, cache.num_slots);
    // Around the caches only where every slot begins on a line.
    const bool has_lines = cache.slot_bytes % stream_line_bytes == 0;
    const RowCopy copy(row_bytes, cache.table, has_lines ? cache.num_slots * row_bytes : 0);
    const int64_t ahead = rows_ahead(row_bytes);
    const auto row = [&](int64_t i) { return rows + changes.positions[i] * row_bytes; };
    for (int64_t i = 0; i < std::min(ahead, changes.size); ++i) prefetch_row(row(i), row_bytes);
    for (int64_t i = 0; i < changes.size; ++i) {
        if (i + ahead < changes.size) prefetch_row(row(i + ahead), row_bytes);
        copy(cache.table + changes.slots[i] * cache.slot_bytes, row(i));
    }
}

}  // namespace gnnstore
