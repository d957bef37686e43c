#include "kernels/traces/next_uses.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstring>
#include <string>
#include <type_traits>
#include <utility>

#include "kernels/base/errors.h"
#include "kernels/base/parallel.h"
#include "kernels/base/pooled_array.h"
#include "kernels/base/relabel.h"
#include "kernels/traces/access_lists.h"
#include "kernels/traces/group_tables.h"

namespace gnnstore {
namespace {

constexpr int64_t huge_page_bytes = 2 << 20;
constexpr int64_t max_keyed_groups = 1 << 13;
constexpr int max_hashed_group_bits = 12;
// Places are wiped for each group: with more ids for each access, hashing costs less.
constexpr int64_t keyed_ids_per_access = 16;
// A thread's groups must have enough accesses to pay for its table; the 6 bytes an access that
// planning is given then hold two tables as well.
constexpr int64_t least_accesses_per_thread = 1 << 20;
// Rows in slots whose nodes and frequencies are fetched before they are needed.
constexpr int64_t slots_ahead = 32;
// In the upper half of what a group has, a row's key; in the lower one, how far into its window the
// access stands.
constexpr int window_bits = 32 - RowGroups::key_bits;
constexpr uint32_t window_mask = (uint32_t{1} << window_bits) - 1;
static_assert(TraceWindows::longest <= window_mask + 1);

void prefetch(const void *at) { __builtin_prefetch(at, 1); }

int useful_threads(int64_t num_ids, int num_threads) {
    return static_cast<int>(
        std::clamp<int64_t>(num_ids / least_accesses_per_thread, 1, num_threads));
}

size_t num_begins(const TraceWindows &windows, const RowGroups &groups) {
    return static_cast<size_t>((groups.num_groups() + 1) * windows.num_windows());
}

// As many as an access may take 2 bytes for: with few batches, or long ones.
size_t num_counts(const TraceWindows &windows, int64_t num_batches) {
    const int64_t count = (windows.num_windows() + num_batches) * (num_batches + 1);
    const int64_t num_ids = windows.begin(windows.num_windows());
    return count <= num_ids / 4 ? static_cast<size_t>(count) : 0;
}

// The largest of some ids, which must not be negative; -1 if there are none.
template <class Id>
int64_t largest_id(const Id *ids, int64_t num_ids) {
    using Unsigned = std::make_unsigned_t<Id>;
    Unsigned largest = 0;  // a negative id is a huge unsigned one
    for (int64_t k = 0; k < num_ids; ++k)
        largest = std::max(largest, static_cast<Unsigned>(ids[k]));
    if (static_cast<Id>(largest) < 0)
        for (int64_t k = 0; k < num_ids; ++k)
            if (ids[k] < 0)
                throw out_of_range("row id ", ids[k], " at position ", k, " is negative");
    return num_ids == 0 ? -1 : static_cast<int64_t>(largest);
}

}  // namespace

RowGroups::RowGroups(int64_t largest, int64_t num_accesses) {
    const int64_t last_group = std::max<int64_t>(largest, 0) >> key_bits;
    has_keys_ = last_group < max_keyed_groups && largest / keyed_ids_per_access < num_accesses;
    if (has_keys_) {
        num_keys_ = std::min<int64_t>(int64_t{1} << key_bits, largest + 1);
        num_groups_ = last_group + 1;
    } else {
        const auto wanted = static_cast<uint64_t>(num_accesses / hashed_group_accesses);
        // At least two groups, since a shift by all 64 bits is none.
        const int bits =
            std::clamp(static_cast<int>(std::bit_width(wanted)), 1, max_hashed_group_bits);
        shift_ = 64 - bits;
        num_groups_ = int64_t{1} << bits;
    }
}

uint64_t RowGroups::mixed(int64_t id) { return static_cast<uint64_t>(id) * hash_multiplier; }

template <class Id>
NextUses<Id>::NextUses(const Trace<Id> &trace, const TracePositions &positions, int64_t num_slots,
                       const int64_t *nodes, const int32_t *frequencies, int32_t *uses,
                       int32_t *carried, int64_t *misses, int num_threads)
    : NextUses(trace, nullptr, TraceWindows::equal(trace.num_ids),
               RowGroups(std::max(largest_id(trace.ids, trace.num_ids),
                                  num_slots == 0 ? -1
                                                 : *std::max_element(nodes, nodes + num_slots)),
                         trace.num_ids + num_slots),
               positions, num_slots, nodes, frequencies, uses, carried, misses, num_threads) {}

template <class Id>
NextUses<Id>::NextUses(const Trace<Id> &trace, const TraceIds<Id> &file, TraceWindows windows,
                       const RowGroups &groups, const TracePositions &positions,
                       int64_t num_slots, const int64_t *nodes, const int32_t *frequencies,
                       int32_t *uses, int32_t *carried, int64_t *misses, int num_threads)
    : NextUses(trace, &file, std::move(windows), groups, positions, num_slots, nodes, frequencies,
               uses, carried, misses, num_threads) {}

template <class Id>
NextUses<Id>::NextUses(const Trace<Id> &trace, const TraceIds<Id> *file, TraceWindows windows,
                       const RowGroups &groups, const TracePositions &positions,
                       int64_t num_slots, const int64_t *nodes, const int32_t *frequencies,
                       int32_t *uses, int32_t *carried, int64_t *misses, int num_threads)
    : trace_(trace),
      file_(file),
      windows_(std::move(windows)),
      positions_(positions),
      nodes_(nodes),
      frequencies_(frequencies),
      num_slots_(num_slots),
      num_threads_(useful_threads(trace.num_ids, num_threads)),
      groups_(groups),
      uses_(uses),
      carried_(carried),
      begins_(num_begins(windows_, groups_)),
      carried_ends_(static_cast<size_t>(groups_.num_groups()), 0) {
    counts_.resize(num_counts(windows_, trace.num_batches));
    fill_carried();
    if (groups_.has_keys())
        find<true, KeyedTable>(misses);
    else
        find<false, HashedTable>(misses);
}

template <class Id>
int64_t NextUses<Id>::working_bytes(const TraceWindows &windows, const RowGroups &groups,
                                    int64_t num_batches, int num_threads) {
    const auto bytes = [](size_t count, size_t size) { return static_cast<int64_t>(count * size); };
    // A thread needs a table, and the accesses of its group that are the last of their rows; how
    // far groups are filled; the ids and the next uses of windows. Only the ids may be so many
    // that the pool has them in huge pages.
    const int64_t num_ids = windows.begin(windows.num_windows());
    const int64_t read_bytes = int64_t{sizeof(Id)} * windows.longest_stretch();
    const int64_t page = read_bytes < huge_page_bytes / 2 ? 1 : huge_page_bytes;
    const int64_t of_thread = 16 * (groups.num_keys() + 1) + 4 * groups.num_groups() +
                              (read_bytes + page - 1) / page * page + 4 * TraceWindows::longest;
    return bytes(num_begins(windows, groups), sizeof(uint16_t)) + 4 * groups.num_groups() +
           bytes(num_counts(windows, num_batches), sizeof(UsesInBatch)) +
           useful_threads(num_ids, num_threads) * of_thread;
}

template <class Id>
void NextUses<Id>::fill_carried() {
    uint32_t *const ends = carried_ends_.data();
    for (int64_t slot = 0; slot < num_slots_; ++slot)
        if (nodes_[slot] >= 0) ++ends[groups_.group(nodes_[slot])];
    uint32_t place = 0;
    for (uint32_t &end : carried_ends_) place += std::exchange(end, place);
    for (int64_t slot = 0; slot < num_slots_; ++slot) {
        if (nodes_[slot] < 0) continue;
        int32_t *const at = carried_ + ends[groups_.group(nodes_[slot])]++;
        *at = static_cast<int32_t>(slot);
        prefetch(at + line);
    }
}

template <class Id>
template <bool has_keys, class Table>
void NextUses<Id>::find(int64_t *misses) {
    const auto num_stretches = static_cast<int64_t>(windows_.stretches().size());
    run_workers(num_threads_, num_stretches, [&](TaskQueue &stretches) {
        std::vector<uint32_t> places(static_cast<size_t>(groups_.num_groups()));
        for_windows(stretches, [&](int64_t w, const Id *ids) {
            fill_window<has_keys>(w, ids, places.data());
        });
    });
    run_workers(num_threads_, groups_.num_groups(), [&](TaskQueue &groups) {
        GroupTable<Table> table(groups_);
        for (int64_t group; groups.take(group);) link<has_keys>(group, table, misses);
    });
    run_workers(num_threads_, num_stretches, [&](TaskQueue &stretches) {
        std::vector<uint32_t> places(static_cast<size_t>(groups_.num_groups()));
        const PooledArray<int32_t> held(TraceWindows::longest);
        for_windows(stretches, [&](int64_t w, const Id *ids) {
            take_window<has_keys>(w, ids, places.data(), held.data());
        });
    });
}

template <class Id>
template <class Use>
void NextUses<Id>::for_windows(TaskQueue &stretches, const Use &use) const {
    const PooledArray<Id> read(file_ == nullptr ? 0 : windows_.longest_stretch());
    for (int64_t i; stretches.take(i);) {
        const TraceWindows::Stretch &stretch = windows_.stretches()[static_cast<size_t>(i)];
        if (file_ != nullptr) file_->read(stretch.begin, stretch.end, read.data());
        const Id *const ids = file_ == nullptr ? trace_.ids + stretch.begin : read.data();
        for (int64_t w = stretch.first_window; w < stretch.end_window; ++w)
            use(w, ids + windows_.begin(w) - stretch.begin);
    }
}

// Puts a window's accesses into its groups: the row's key, and how far into the window they stand.
template <class Id>
template <bool has_keys>
void NextUses<Id>::fill_window(int64_t w, const Id *ids, uint32_t *places) {
    const RowGroups groups = groups_;  // a copy: stores cannot change it, it stays in registers
    const int64_t num_groups = groups.num_groups(), size = windows_.end(w) - windows_.begin(w);
    int32_t *const uses = uses_ + windows_.begin(w);
    std::fill_n(places, num_groups, 0);
    for (int64_t begin = 0; begin < size; begin += line) {
        prefetch(uses + begin);
        const int64_t end = std::min(begin + line, size);
        for (int64_t i = begin; i < end; ++i) ++places[groups.group<has_keys>(ids[i])];
    }
    uint32_t place = 0;
    for (int64_t group = 0; group < num_groups; ++group) {
        begin_of(group, w) = static_cast<uint16_t>(place);
        place += std::exchange(places[group], place);
    }
    begin_of(num_groups, w) = static_cast<uint16_t>(place);
    uint32_t found[block];
    for (int64_t begin = 0; begin < size; begin += block) {
        const int64_t end = std::min(begin + block, size);
        for (int64_t i = begin; i < end; ++i)
            found[i - begin] = places[groups.group<has_keys>(ids[i])]++;
        for (int64_t i = begin; i < end; ++i) {
            const uint32_t key = has_keys ? RowGroups::key(ids[i]) << window_bits : 0;
            uses[found[i - begin]] = static_cast<int32_t>(key | static_cast<uint32_t>(i));
        }
    }
}

// Goes from the end of the trace to its beginning: a row's entry in the table is where it
// was met last, which is its next use.
template <class Id>
template <bool has_keys, class Table>
void NextUses<Id>::link(int64_t group, Table &group_table, int64_t *misses) {
    const int64_t num_windows = windows_.num_windows();
    const uint16_t *const begins = begins_.data() + group * num_windows;
    const uint16_t *const ends = begins + num_windows;
    const int64_t carried_end = carried_ends_[static_cast<size_t>(group)];
    const int64_t carried = group == 0 ? 0 : carried_ends_[static_cast<size_t>(group) - 1];
    int64_t num_accesses = 0;
    for (int64_t w = 0; w < num_windows; ++w) num_accesses += ends[w] - begins[w];
    if (num_accesses + carried_end - carried == 0) return;
    group_table.start(num_accesses, carried_end - carried);
    auto &table = group_table.table();
    auto *const lasts = group_table.lasts();
    int64_t num_lasts = 0;

    const int64_t *const offsets = trace_.offsets;
    const int32_t end = positions_.end();
    // The batch that is looked at: where it begins, and the positions from `end` on of its
    // accesses and of what is behind it.
    int64_t batch = trace_.num_batches, batch_begin = trace_.num_ids;
    int32_t gap = 0, behind = 0;
    int64_t num_repeated = 0;
    const auto count_repeated = [&] {
        if (num_repeated > 0)
            std::atomic_ref(misses[batch]).fetch_sub(num_repeated, std::memory_order_relaxed);
        num_repeated = 0;
    };
    const auto key_of = [&](uint32_t value, int64_t k) {
        return static_cast<typename Table::Key>(has_keys ? value >> window_bits : trace_.ids[k]);
    };
    for (int64_t w = num_windows - 1; w >= 0; --w) {
        // A group's part of one window is too short for the hardware prefetcher to detect.
        if (w >= windows_ahead) {
            const int64_t ahead = w - windows_ahead;
            const int32_t *const window_uses = uses_ + windows_.begin(ahead);
            for (int32_t i = begins[ahead]; i < ends[ahead]; i += line) prefetch(window_uses + i);
        }
        const int64_t first = windows_.begin(w);
        uint32_t held[block];
        int32_t found[block + list_slack];
        for (int32_t behind_block = ends[w]; behind_block > begins[w];) {
            const int32_t begin = std::max<int32_t>(begins[w], behind_block - block);
            const int32_t size = behind_block - begin;
            behind_block = begin;
            int32_t *const uses = uses_ + first + begin;
            std::memcpy(held, uses, static_cast<size_t>(size) * sizeof *held);
            for (int32_t i = size; i-- > 0;) {
                const auto k = static_cast<int32_t>(held[i] & window_mask);
                if (k < batch_begin - first) [[unlikely]] {
                    count_repeated();
                    batch = std::upper_bound(offsets, offsets + batch, first + k) - offsets - 1;
                    batch_begin = offsets[batch];
                    gap = static_cast<int32_t>(positions_.begin(batch) - batch_begin - end);
                    behind = positions_.begin(batch + 1) - end;
                }
                Met &met = table.at(key_of(held[i], first + k));
                const int32_t next = met.next;
                met.next = static_cast<int32_t>(first) + gap + k;
                ++met.num_batches;
                if (next < behind) [[unlikely]] {
                    --met.num_batches;
                    ++num_repeated;
                }
                uses[i] = next + end;
            }
            const int32_t num_here = list_between(uses, size, end, end, found);
            for (int32_t j = 0; j < num_here; ++j) {
                const int64_t k = first + (held[found[j]] & window_mask);
                lasts[num_lasts++] = {static_cast<uint32_t>(first + begin + found[j]),
                                      key_of(held[found[j]], k)};
            }
        }
    }
    count_repeated();
    for (int64_t place = carried; place < carried_end; ++place) {
        // Slots of a group lie all over the cache.
        const int32_t ahead = carried_[std::min(place + slots_ahead, carried_end - 1)];
        __builtin_prefetch(nodes_ + ahead, 0, 2);
        __builtin_prefetch(frequencies_ + ahead, 0, 2);
        const int32_t slot = carried_[place];
        const int64_t node = nodes_[slot];
        Met &met =
            table.at(static_cast<typename Table::Key>(has_keys ? RowGroups::key(node) : node));
        require(met.next != Met::in_a_slot, "nodes must be distinct, but ", node, " stands there "
                "twice, at last in slot ", slot);
        const int32_t frequency = std::min(frequencies_[slot], max_frequency);
        carried_[place] = met.next == Met::nowhere ? -frequency : met.next + end;
        met.next = Met::in_a_slot;
        met.num_batches += static_cast<uint32_t>(frequency);
    }
    for (int64_t j = 0; j < num_lasts; ++j)
        uses_[lasts[j].place] = table.at(lasts[j].key).negative_frequency();
}

// Puts what was found for a window's accesses to where they stand. held [its size].
template <class Id>
template <bool has_keys>
void NextUses<Id>::take_window(int64_t w, const Id *ids, uint32_t *places, int32_t *held) {
    const RowGroups groups = groups_;
    const int64_t size = windows_.end(w) - windows_.begin(w);
    int32_t *const uses = uses_ + windows_.begin(w);
    std::copy_n(uses, size, held);
    for (int64_t group = 0; group < groups.num_groups(); ++group)
        places[group] = begin_of(group, w);
    for (int64_t i = 0; i < size; ++i) uses[i] = held[places[groups.group<has_keys>(ids[i])]++];
    if (!counts_.empty()) count_window(w);
}

template <class Id>
void NextUses<Id>::count_window(int64_t w) {
    const int64_t *const offsets = trace_.offsets;
    const int64_t window_end = windows_.end(w);
    int64_t k = windows_.begin(w);
    int64_t batch = std::upper_bound(offsets, offsets + trace_.num_batches, k) - offsets - 1;
    for (; k < window_end; ++batch) {
        const int64_t end = std::min(offsets[batch + 1], window_end);
        positions_.count(uses_ + k, end - k, counts_of(w, batch));
        k = end;
    }
}

template <class Id>
bool NextUses<Id>::add_uses(int64_t batch, UsesInBatch *uses) const {
    if (counts_.empty()) return false;
    const int64_t begin = trace_.offsets[batch], end = trace_.offsets[batch + 1];
    const auto row_size = static_cast<size_t>(trace_.num_batches) + 1;
    for (int64_t w = windows_.at(begin); begin < end && windows_.begin(w) < end; ++w) {
        const UsesInBatch *const row = &counts_[static_cast<size_t>(w + batch) * row_size];
        for (size_t i = 0; i < row_size; ++i) {
            uses[i].even += row[i].even;
            uses[i].odd += row[i].odd;
        }
    }
    return true;
}

template <class Id>
void NextUses<Id>::take_carried(int32_t *first_uses) {
    uint32_t *const ends = carried_ends_.data();
    for (int64_t slot = num_slots_ - 1; slot >= 0; --slot) {
        if (nodes_[slot] < 0) {
            first_uses[slot] = positions_.end();
            continue;
        }
        const uint32_t place = --ends[groups_.group(nodes_[slot])];
        first_uses[slot] = carried_[place];
        prefetch(carried_ + place - line);
    }
}

template class NextUses<int32_t>;
template class NextUses<int64_t>;

}  // namespace gnnstore
