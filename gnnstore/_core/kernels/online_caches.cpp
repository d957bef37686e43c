#include "kernels/online_caches.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "kernels/pooled_array.h"
#include "kernels/row_table.h"

namespace gnnstore {
namespace {

constexpr int64_t table_distance = 32;
constexpr int32_t nowhere = -1;

// A doubly linked list of rows, newest at the head; links belong to the rows, which are numbered
// in the order of their first use.
class RowList {
public:
    explicit RowList(int64_t num_rows)
        : newer_(static_cast<size_t>(num_rows)), older_(static_cast<size_t>(num_rows)) {}

    void push(int32_t row) {
        newer(row) = nowhere;
        older(row) = head_;
        (head_ == nowhere ? tail_ : newer(head_)) = row;
        head_ = row;
        ++size_;
    }
    void remove(int32_t row) {
        (newer(row) == nowhere ? head_ : older(newer(row))) = older(row);
        (older(row) == nowhere ? tail_ : newer(older(row))) = newer(row);
        --size_;
    }
    int32_t tail() const { return tail_; }
    int32_t newer_than(int32_t row) const { return newer_[static_cast<size_t>(row)]; }
    int64_t size() const { return size_; }

private:
    int32_t &newer(int32_t row) { return newer_[static_cast<size_t>(row)]; }
    int32_t &older(int32_t row) { return older_[static_cast<size_t>(row)]; }

    std::vector<int32_t> newer_, older_;
    int32_t head_ = nowhere, tail_ = nowhere;
    int64_t size_ = 0;
};

// What every cache knows of a row.
struct RowFlags {
    uint8_t is_cached : 1;
    uint8_t is_visited : 1;
};

class Lru {
public:
    Lru(int64_t num_rows, int64_t num_slots) : list_(num_rows), num_slots_(num_slots) {}

    void hit(int32_t, RowFlags *) {}
    // A row of a batch that was assembled: it becomes the newest.
    void enter(int32_t row, RowFlags *flags) {
        if (flags[row].is_cached) {
            list_.remove(row);
        } else if (list_.size() == num_slots_) {
            const int32_t oldest = list_.tail();
            list_.remove(oldest);
            flags[oldest].is_cached = 0;
        }
        list_.push(row);
        flags[row].is_cached = 1;
    }

private:
    RowList list_;
    int64_t num_slots_;
};

class Sieve {
public:
    Sieve(int64_t num_rows, int64_t num_slots) : list_(num_rows), num_slots_(num_slots) {}

    void hit(int32_t row, RowFlags *flags) { flags[row].is_visited = 1; }
    void enter(int32_t row, RowFlags *flags) {
        if (flags[row].is_cached) return;
        if (list_.size() == num_slots_) evict(flags);
        list_.push(row);
        flags[row] = {.is_cached = 1, .is_visited = 0};
    }

private:
    // The hand goes from the oldest row to the newest and around; it spares visited rows once.
    void evict(RowFlags *flags) {
        int32_t row = hand_ == nowhere ? list_.tail() : hand_;
        while (flags[row].is_visited) {
            flags[row].is_visited = 0;
            row = list_.newer_than(row) == nowhere ? list_.tail() : list_.newer_than(row);
        }
        hand_ = list_.newer_than(row);
        list_.remove(row);
        flags[row].is_cached = 0;
    }

    RowList list_;
    int64_t num_slots_;
    int32_t hand_ = nowhere;
};

// rows[k]: a number for the row of access k, from 0 in the order of first uses. Returns how
// many there are.
template <class Id>
int64_t number_rows(const Trace<Id> &trace, int32_t *rows) {
    const int64_t largest = largest_id(trace.ids, trace.num_ids);
    return with_row_table<uint32_t>(largest, trace.num_ids, [&](auto &table) {
        uint32_t num_rows = 0;
        for (int64_t k = 0; k < trace.num_ids; ++k) {
            table.prefetch(trace.ids[std::min(k + table_distance, trace.num_ids - 1)]);
            uint32_t &number = table.at(trace.ids[k]);
            if (number == 0) number = ++num_rows;
            rows[k] = static_cast<int32_t>(number - 1);
        }
        return static_cast<int64_t>(num_rows);
    });
}

template <class Cache, class Id>
void run(const Trace<Id> &trace, int64_t num_slots, uint8_t *is_hit, int64_t *misses) {
    check_offsets(trace);
    if (num_slots < 0) throw std::invalid_argument("num_slots must not be negative");
    const PooledArray<int32_t> rows(trace.num_ids);
    const int64_t num_rows = number_rows(trace, rows.data());
    std::vector<RowFlags> flags(static_cast<size_t>(num_rows));
    std::vector<int32_t> last_batch(static_cast<size_t>(num_rows), -1);
    Cache cache(num_rows, num_slots);
    for (int64_t batch = 0; batch < trace.num_batches; ++batch) {
        const int64_t begin = trace.offsets[batch], end = trace.offsets[batch + 1];
        misses[batch] = 0;
        for (int64_t k = begin; k < end; ++k) {
            const int32_t row = rows[k];
            is_hit[k] = flags[static_cast<size_t>(row)].is_cached;
            int32_t &last = last_batch[static_cast<size_t>(row)];
            const bool is_repeated = std::exchange(last, static_cast<int32_t>(batch)) == batch;
            if (is_hit[k]) cache.hit(row, flags.data());
            misses[batch] += !is_hit[k] && !is_repeated;
        }
        if (num_slots == 0) continue;
        for (int64_t k = begin; k < end; ++k) cache.enter(rows[k], flags.data());
    }
}

}  // namespace

template <class Id>
void run_lru(const Trace<Id> &trace, int64_t num_slots, uint8_t *is_hit, int64_t *misses) {
    run<Lru>(trace, num_slots, is_hit, misses);
}

template <class Id>
void run_sieve(const Trace<Id> &trace, int64_t num_slots, uint8_t *is_hit, int64_t *misses) {
    run<Sieve>(trace, num_slots, is_hit, misses);
}

template void run_lru(const Trace<int32_t> &, int64_t, uint8_t *, int64_t *);
template void run_lru(const Trace<int64_t> &, int64_t, uint8_t *, int64_t *);
template void run_sieve(const Trace<int32_t> &, int64_t, uint8_t *, int64_t *);
template void run_sieve(const Trace<int64_t> &, int64_t, uint8_t *, int64_t *);

}  // namespace gnnstore
