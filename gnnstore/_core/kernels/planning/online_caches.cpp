#include "kernels/planning/online_caches.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "kernels/base/pooled_array.h"
#include "kernels/base/row_table.h"

namespace gnnstore {
namespace {

constexpr int64_t table_distance = 32;
constexpr int64_t rows_distance = 16;
constexpr int32_t nowhere = -1;

// State of a row. Rows are numbered: those in the cache first, the others in the order of their
// first use.
struct Row {
    int32_t newer, older;  // neighbours in the cache's list
    int32_t slot;          // before the batch that is planned; -1: none
    int32_t last_batch;    // that it was met in
    bool is_cached, is_visited;
};

// A doubly linked list of rows, newest at the head.
class RowList {
public:
    void hold(Row *rows) { rows_ = rows; }

    void push(int32_t row) {
        rows_[row].newer = nowhere;
        rows_[row].older = head_;
        (head_ == nowhere ? tail_ : rows_[head_].newer) = row;
        head_ = row;
        ++size_;
    }
    void remove(int32_t row) {
        const Row &own = rows_[row];
        (own.newer == nowhere ? head_ : rows_[own.newer].older) = own.older;
        (own.older == nowhere ? tail_ : rows_[own.older].newer) = own.newer;
        --size_;
    }
    int32_t tail() const { return tail_; }
    int64_t size() const { return size_; }

private:
    Row *rows_ = nullptr;
    int32_t head_ = nowhere, tail_ = nowhere;
    int64_t size_ = 0;
};

// Policies. hit(row) is told of the hits of a batch; use(row) of all its rows after that, which
// are in the cache then. The latter returns the row that leaves, or nowhere. prefetch(row)
// announces a use that is some way ahead.
class Lru {
public:
    explicit Lru(Row *rows) : rows_(rows) {}

    // A row that is used changes places in the list, which touches its neighbours.
    void prefetch(int32_t row) const {
        __builtin_prefetch(&rows_[std::max(rows_[row].newer, 0)], 1);
        __builtin_prefetch(&rows_[std::max(rows_[row].older, 0)], 1);
    }
    void hit(int32_t) {}
    int32_t use(RowList &list, int64_t num_slots, int32_t row) {
        int32_t leaving = nowhere;
        if (rows_[row].is_cached) {
            list.remove(row);
        } else if (list.size() == num_slots) {
            leaving = list.tail();
            list.remove(leaving);
        }
        list.push(row);
        return leaving;
    }
    int32_t hand() const { return nowhere; }

private:
    Row *const rows_;
};

class Sieve {
public:
    Sieve(Row *rows, int32_t hand) : rows_(rows), hand_(hand) {}

    void prefetch(int32_t) const {}
    void hit(int32_t row) { rows_[row].is_visited = true; }
    int32_t use(RowList &list, int64_t num_slots, int32_t row) {
        if (rows_[row].is_cached) return nowhere;
        const int32_t leaving = list.size() == num_slots ? evict(list) : nowhere;
        list.push(row);
        rows_[row].is_visited = false;
        return leaving;
    }
    int32_t hand() const { return hand_; }

private:
    // The hand goes from the oldest row to the newest and around; it spares visited rows once.
    int32_t evict(RowList &list) {
        int32_t row = hand_ == nowhere ? list.tail() : hand_;
        while (rows_[row].is_visited) {
            rows_[row].is_visited = false;
            row = rows_[row].newer == nowhere ? list.tail() : rows_[row].newer;
        }
        hand_ = rows_[row].newer;
        list.remove(row);
        return row;
    }

    Row *const rows_;
    int32_t hand_;
};

// Throws unless the order names the slots that hold a row, each once; returns how many do.
int64_t check_state(const OnlineState &state, int64_t num_slots) {
    using std::to_string;
    std::vector<bool> is_named(static_cast<size_t>(num_slots));
    int64_t size = 0;
    for (; size < num_slots && state.order[size] >= 0; ++size) {
        const int64_t slot = state.order[size];
        if (slot >= num_slots || is_named[static_cast<size_t>(slot)] || state.nodes[slot] < 0)
            throw std::invalid_argument(
                "order must name slots that hold a row, each once, but names slot " +
                to_string(slot) + " at position " + to_string(size));
        is_named[static_cast<size_t>(slot)] = true;
    }
    for (int64_t slot = 0; slot < num_slots; ++slot)
        if (state.nodes[slot] >= 0 && !is_named[static_cast<size_t>(slot)])
            throw std::invalid_argument("order does not name slot " + to_string(slot) +
                                        ", which holds row " + to_string(state.nodes[slot]));
    if (state.hand >= num_slots || (state.hand >= 0 && state.nodes[state.hand] < 0))
        throw std::invalid_argument("hand must be a slot that holds a row, or -1, got " +
                                    to_string(state.hand));
    return size;
}

template <class Id>
class Planner {
public:
    Planner(const Trace<Id> &trace, int64_t num_slots, OnlineState &state, int32_t *slots,
            int64_t *misses)
        : trace_(trace),
          num_slots_(num_slots),
          state_(state),
          slots_(slots),
          misses_(misses),
          numbers_(trace.num_ids),
          num_cached_(check_state(state, num_slots)),
          free_slots_(num_slots) {
        const int64_t num_rows = number_rows();
        rows_ = PooledArray<Row>(num_rows);
        std::fill_n(rows_.data(), num_rows, Row{nowhere, nowhere, nowhere, -1, false, false});
        list_.hold(rows_.data());
        for (int64_t slot = num_slots; slot-- > 0;)  // the lowest will be on top
            if (state.nodes[slot] < 0) free_slots_[num_free_++] = static_cast<int32_t>(slot);
    }

    CacheChanges run(OnlinePolicy policy) {
        int32_t hand = nowhere;
        for (int64_t i = 0; i < num_cached_; ++i) {
            const int32_t slot = state_.order[i];
            const auto row = static_cast<int32_t>(i);
            list_.push(row);
            rows_[row].slot = slot;
            rows_[row].is_cached = true;
            rows_[row].is_visited = state_.visited[slot] != 0;
            if (slot == state_.hand) hand = row;
        }
        if (policy == OnlinePolicy::lru) return run(Lru(rows_.data()));
        return run(Sieve(rows_.data(), hand));
    }

private:
    // numbers_[k]: the number of the row of access k. Returns how many rows there are.
    int64_t number_rows() {
        int64_t largest = largest_id(trace_.ids, trace_.num_ids);
        for (int64_t slot = 0; slot < num_slots_; ++slot)
            largest = std::max(largest, state_.nodes[slot]);
        return with_row_table<uint32_t>(largest, trace_.num_ids + num_cached_, [&](auto &table) {
            uint32_t num_rows = 0;
            for (int64_t i = 0; i < num_cached_; ++i) {
                const int64_t ahead = state_.order[std::min(i + table_distance, num_cached_ - 1)];
                table.prefetch(state_.nodes[ahead]);
                const int32_t slot = state_.order[i];
                uint32_t &number = table.at(state_.nodes[slot]);
                if (number != 0)
                    throw std::invalid_argument("nodes must be distinct, but " +
                                                std::to_string(state_.nodes[slot]) +
                                                " stands there twice, at last in slot " +
                                                std::to_string(slot));
                number = ++num_rows;
            }
            for (int64_t k = 0; k < trace_.num_ids; ++k) {
                table.prefetch(trace_.ids[std::min(k + table_distance, trace_.num_ids - 1)]);
                uint32_t &number = table.at(trace_.ids[k]);
                if (number == 0) number = ++num_rows;
                numbers_[k] = static_cast<int32_t>(number - 1);
            }
            return static_cast<int64_t>(num_rows);
        });
    }

    template <class Policy>
    CacheChanges run(Policy policy) {
        CacheChanges changes;
        changes.offsets.push_back(0);
        for (int64_t batch = 0; batch < trace_.num_batches; ++batch) {
            find_hits(batch, policy);
            if (num_slots_ > 0) use_rows(batch, policy);
            change_slots(batch, changes);
            changes.offsets.push_back(static_cast<int64_t>(changes.positions.size()));
        }
        save(policy.hand());
        return changes;
    }

    int32_t number_ahead(int64_t k) const {
        return numbers_[std::min(k + rows_distance, trace_.num_ids - 1)];
    }

    template <class Policy>
    void find_hits(int64_t batch, Policy &policy) {
        misses_[batch] = 0;
        for (int64_t k = trace_.offsets[batch]; k < trace_.offsets[batch + 1]; ++k) {
            __builtin_prefetch(&rows_[number_ahead(k)], 1);
            const int32_t number = numbers_[k];
            Row &row = rows_[number];
            slots_[k] = row.slot;
            const bool is_repeated =
                std::exchange(row.last_batch, static_cast<int32_t>(batch)) == batch;
            if (row.slot >= 0)
                policy.hit(number);
            else
                misses_[batch] += !is_repeated;
        }
    }

    template <class Policy>
    void use_rows(int64_t batch, Policy &policy) {
        for (int64_t k = trace_.offsets[batch]; k < trace_.offsets[batch + 1]; ++k) {
            __builtin_prefetch(&rows_[number_ahead(k + rows_distance)], 1);
            policy.prefetch(number_ahead(k));
            const int32_t number = numbers_[k];
            const int32_t leaving = policy.use(list_, num_slots_, number);
            if (leaving != nowhere) {
                rows_[leaving].is_cached = false;
                left_.push_back(leaving);
            }
            if (std::exchange(rows_[number].is_cached, true)) continue;
            entered_.push_back(static_cast<int32_t>(k));
        }
    }

    // Rows may leave and enter again within a batch: only what is different after it counts.
    void change_slots(int64_t batch, CacheChanges &changes) {
        for (const int32_t number : left_) {
            Row &row = rows_[number];
            if (row.is_cached || row.slot < 0) continue;
            state_.nodes[row.slot] = -1;
            free_slots_[num_free_++] = std::exchange(row.slot, nowhere);
        }
        for (const int32_t k : entered_) {
            Row &row = rows_[numbers_[k]];
            if (!row.is_cached || row.slot >= 0) continue;
            row.slot = free_slots_[--num_free_];
            state_.nodes[row.slot] = trace_.ids[k];
            changes.positions.push_back(static_cast<int32_t>(k - trace_.offsets[batch]));
            changes.slots.push_back(row.slot);
        }
        left_.clear();
        entered_.clear();
    }

    void save(int32_t hand) {
        std::fill_n(state_.visited, num_slots_, 0);
        std::fill_n(state_.order, num_slots_, nowhere);
        int64_t i = 0;
        for (int32_t row = list_.tail(); row != nowhere; row = rows_[row].newer) {
            const int32_t slot = rows_[row].slot;
            state_.order[i++] = slot;
            state_.visited[slot] = rows_[row].is_visited;
        }
        state_.hand = hand == nowhere ? nowhere : rows_[hand].slot;
    }

    const Trace<Id> trace_;
    const int64_t num_slots_;
    OnlineState &state_;
    int32_t *const slots_;
    int64_t *const misses_;
    PooledArray<int32_t> numbers_;     // [num_ids]
    const int64_t num_cached_;         // before the first batch
    PooledArray<int32_t> free_slots_;  // a stack
    int64_t num_free_ = 0;
    PooledArray<Row> rows_;
    RowList list_;
    std::vector<int32_t> left_;     // rows that left in the batch that is planned
    std::vector<int32_t> entered_;  // accesses by which rows entered
};

}  // namespace

template <class Id>
CacheChanges plan_online(OnlinePolicy policy, const Trace<Id> &trace, int64_t num_slots,
                         OnlineState &state, int32_t *slots, int64_t *misses) {
    check_offsets(trace);
    check_num_slots(num_slots);
    return Planner<Id>(trace, num_slots, state, slots, misses).run(policy);
}

template CacheChanges plan_online(OnlinePolicy, const Trace<int32_t> &, int64_t, OnlineState &,
                                  int32_t *, int64_t *);
template CacheChanges plan_online(OnlinePolicy, const Trace<int64_t> &, int64_t, OnlineState &,
                                  int32_t *, int64_t *);

}  // namespace gnnstore
