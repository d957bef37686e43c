// The stages of batch_sampler.h, with the cached part of a hop's in-neighbours filled in while
// the batch waits for nothing, and the rest asked for.
//
// Misses are remembered as runs: the edges of one node of the frontier lie side by side and
// are either all cached or all to be fetched.
#include "kernels/sampling/sampling_staged.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <numeric>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "kernels/sampling/batch_sampler.h"

namespace gnnstore {
namespace {

// Nodes of the frontier between asking for a list's memory and copying from it: with a
// fan-out of 10 that is about neighbors_distance.
constexpr size_t copy_distance = 5;
// More of one list is in order, or too much for the first cache level anyway.
constexpr int64_t most_prefetched = 16;

template <class Index>
class ListFinder {
public:
    ListFinder(const ColumnStarts &columns, const CachedLists<Index> &cache)
        : columns_(columns), cache_(cache) {}

    bool is_cached(int64_t node) const {
        return cache_.bits != nullptr && (cache_.bits[node / 64] >> (node % 64) & 1) != 0;
    }

    void prefetch(int64_t node) const {
        if (cache_.bits == nullptr || node >= columns_.num_nodes) return;
        __builtin_prefetch(&cache_.bits[node / 64]);
        __builtin_prefetch(&cache_.starts[node / 64]);
    }

    // The in-neighbours of a cached node. Neither cache nor indptr is trusted: the list lies
    // inside the cache, whatever they say.
    const Index *find(int64_t node, NeighborList list) const {
        uint64_t before = cache_.bits[node / 64] & ((uint64_t{1} << (node % 64)) - 1);
        const int64_t *indptr = columns_.indptr + node / 64 * 64;
        auto place = static_cast<uint64_t>(cache_.starts[node / 64]);
        for (; before != 0; before &= before - 1) {
            const int64_t *at = indptr + std::countr_zero(before);
            place += static_cast<uint64_t>(at[1]) - static_cast<uint64_t>(at[0]);
        }
        const auto size = static_cast<uint64_t>(cache_.num_neighbors);
        if (place > size || static_cast<uint64_t>(list.degree) > size - place)
            throw std::invalid_argument("indptr: the " + std::to_string(list.degree) +
                                        " in-neighbours of node " + std::to_string(node) +
                                        " are not where the neighbour cache has them");
        return cache_.neighbors + place;
    }

private:
    const ColumnStarts columns_;
    const CachedLists<Index> cache_;
};

template <class Index, class Local, class Table>
class Staged final : public StagedBatch {
public:
    Staged(const ColumnStarts &columns, const CachedLists<Index> &cache, const int64_t *seeds,
           int64_t num_seeds, SamplingOptions options, int64_t max_column_positions)
        : options_(std::move(options)),
          lists_(columns, cache),
          batch_(columns, options_),
          max_column_positions_(max_column_positions) {
        batch_.add_seeds(seeds, num_seeds);
        settle();
    }

    bool is_done() const override { return state_ == State::done; }

    int64_t draw() override {
        expect(State::ready, "draw");
        if (batch_.has_hop())
            draw_hop();
        else
            draw_columns();
        state_ = State::drawn;
        return num_missed_;
    }

    PooledArray<int64_t> take_positions() override { return std::move(missed_); }

    void take(const void *neighbors) override {
        expect(State::drawn, "take");
        if (batch_.has_hop())
            take_hop(static_cast<const Index *>(neighbors));
        else
            take_columns(static_cast<const Index *>(neighbors));
        settle();
    }

    SampledBatch release() override {
        expect(State::done, "release");
        return batch_.release();
    }

private:
    enum class State { ready, drawn, done, spent };

    // A call that throws leaves the batch spent.
    void expect(State state, const char *call) {
        if (std::exchange(state_, State::spent) != state)
            throw std::logic_error(std::string(call) +
                                   " was called out of turn, or after a call that failed");
    }

    void settle() {
        const bool has_columns = options_.induced && column_ < batch_.num_nodes();
        state_ = batch_.has_hop() || has_columns ? State::ready : State::done;
        // Before the batches that advance with this one are done.
        if (state_ == State::done) batch_.drop_table();
    }

    struct Copy {
        const Index *column;
        int64_t start;  // of the column in indices
        int64_t edge, count;
    };
    struct Run {
        int64_t begin, end;  // edges of the hop
    };
    // A part of the in-neighbours of the node with local id i.
    struct Piece {
        int64_t i;
        NeighborList list;
        const Index *cached;  // null: to be fetched
    };

    void draw_hop() {
        hop_edges_ = batch_.draw();
        missed_ = PooledArray<int64_t>(hop_edges_);
        num_missed_ = 0;
        copies_.clear();
        runs_.clear();
        divide_hop();
        if (!copies_.empty()) {
            neighbors_ = PooledArray<Index>(hop_edges_);
            copy_cached();
        }
        num_cached_ += hop_edges_ - num_missed_;
    }

    // Tells the edges to copy from the cache from those to fetch.
    void divide_hop() {
        const int64_t *positions = batch_.positions();
        int64_t edge = 0;
        batch_.for_each_list([&](int64_t node, int64_t ahead, NeighborList list, int64_t count) {
            lists_.prefetch(ahead);
            if (count == 0) return;
            if (lists_.is_cached(node)) {
                copies_.push_back({lists_.find(node, list), list.start, edge, count});
            } else {
                std::copy_n(positions + edge, count, missed_.data() + num_missed_);
                num_missed_ += count;
                if (!runs_.empty() && runs_.back().end == edge)
                    runs_.back().end += count;
                else
                    runs_.push_back({edge, edge + count});
            }
            edge += count;
        });
    }

    void copy_cached() {
        const int64_t *positions = batch_.positions();
        const size_t last = copies_.size() - 1;
        for (size_t i = 0; i < copies_.size(); ++i) {
            const Copy &ahead = copies_[std::min(i + copy_distance, last)];
            const int64_t asked = std::min(ahead.count, most_prefetched);
            for (int64_t k = ahead.edge; k < ahead.edge + asked; ++k)
                __builtin_prefetch(&ahead.column[positions[k] - ahead.start]);
            const Copy &own = copies_[i];
            for (int64_t k = own.edge; k < own.edge + own.count; ++k)
                neighbors_[k] = own.column[positions[k] - own.start];
        }
    }

    void take_hop(const Index *fetched) {
        const Index *all = fetched;
        if (!copies_.empty()) {
            for (const Run &run : runs_) {
                std::copy_n(fetched, run.end - run.begin, neighbors_.data() + run.begin);
                fetched += run.end - run.begin;
            }
            all = neighbors_.data();
        }
        batch_.check_neighbors(all, batch_.positions(), hop_edges_);
        batch_.relabel(all, hop_edges_);
    }

    // Whole columns, as many as make max_column_positions_ positions to fetch.
    void draw_columns() {
        if (column_ == 0 && done_of_column_ == 0) batch_.drop_edges(0);
        pieces_.clear();
        num_missed_ = 0;
        for (; column_ < batch_.num_nodes() && num_missed_ < max_column_positions_; ++column_) {
            const NeighborList list = batch_.list_of(column_);
            const int64_t node = batch_.node(column_);
            if (lists_.is_cached(node)) {
                pieces_.push_back({column_, list, lists_.find(node, list)});
                num_cached_ += list.degree;
                continue;
            }
            const int64_t left = list.degree - done_of_column_;
            const int64_t count = std::min(left, max_column_positions_ - num_missed_);
            pieces_.push_back({column_, {list.start + done_of_column_, count}, nullptr});
            num_missed_ += count;
            done_of_column_ += count;
            if (count < left) break;
            done_of_column_ = 0;
        }
        missed_ = PooledArray<int64_t>(num_missed_);
        int64_t *position = missed_.data();
        for (const Piece &piece : pieces_) {
            if (piece.cached != nullptr) continue;
            std::iota(position, position + piece.list.degree, piece.list.start);
            position += piece.list.degree;
        }
    }

    void take_columns(const Index *fetched) {
        for (const Piece &piece : pieces_) {
            const Index *neighbors = piece.cached;
            if (neighbors == nullptr) {
                neighbors = fetched;
                fetched += piece.list.degree;
            }
            batch_.reserve_edges(batch_.count_inner_edges(piece.list, neighbors));
            batch_.append_inner_edges(piece.i, piece.list, neighbors);
        }
    }

    const SamplingOptions options_;
    const ListFinder<Index> lists_;
    BatchSampler<Index, Local, Table> batch_;
    const int64_t max_column_positions_;
    State state_ = State::spent;

    PooledArray<int64_t> missed_;  // positions to fetch
    int64_t num_missed_ = 0;

    int64_t hop_edges_ = 0;
    PooledArray<Index> neighbors_;  // of the hop; unused where nothing is cached
    std::vector<Copy> copies_;
    std::vector<Run> runs_;

    int64_t column_ = 0, done_of_column_ = 0;  // the next to be asked for
    std::vector<Piece> pieces_;
};

}  // namespace

template <class Index, class Local>
std::unique_ptr<StagedBatch> make_staged_batch(const ColumnStarts &columns,
                                               const CachedLists<Index> &cache,
                                               const int64_t *seeds, int64_t num_seeds,
                                               SamplingOptions options,
                                               int64_t max_column_positions) {
    check_sampling(columns, options, std::numeric_limits<Local>::max());
    if (max_column_positions < 1)
        throw std::invalid_argument("max_column_positions must be at least 1, got " +
                                    std::to_string(max_column_positions));
    if (fits_compact_table(columns, options))
        return std::make_unique<Staged<Index, Local, CompactTable>>(
            columns, cache, seeds, num_seeds, std::move(options), max_column_positions);
    return std::make_unique<Staged<Index, Local, WideTable>>(
        columns, cache, seeds, num_seeds, std::move(options), max_column_positions);
}

template std::unique_ptr<StagedBatch> make_staged_batch<int32_t, int32_t>(
    const ColumnStarts &, const CachedLists<int32_t> &, const int64_t *, int64_t, SamplingOptions,
    int64_t);
template std::unique_ptr<StagedBatch> make_staged_batch<int32_t, int64_t>(
    const ColumnStarts &, const CachedLists<int32_t> &, const int64_t *, int64_t, SamplingOptions,
    int64_t);
template std::unique_ptr<StagedBatch> make_staged_batch<int64_t, int32_t>(
    const ColumnStarts &, const CachedLists<int64_t> &, const int64_t *, int64_t, SamplingOptions,
    int64_t);
template std::unique_ptr<StagedBatch> make_staged_batch<int64_t, int64_t>(
    const ColumnStarts &, const CachedLists<int64_t> &, const int64_t *, int64_t, SamplingOptions,
    int64_t);

}  // namespace gnnstore
