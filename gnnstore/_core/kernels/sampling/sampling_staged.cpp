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

#include "kernels/base/errors.h"
#include "kernels/sampling/batch_sampler.h"

namespace gnnstore {
namespace {

// Nodes of the frontier between asking for a list's memory and copying from it: with a
// fan-out of 10 that is about neighbors_distance.
constexpr size_t copy_distance = 5;
// More of one list is in order, or too much for the first cache level anyway.
constexpr int64_t most_prefetched = 16;

class ListFinder {
public:
    ListFinder(const ColumnStarts &columns, const CachedLists &cache)
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
    template <class Index>
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
            throw invalid("indptr: the ", list.degree, " in-neighbours of node ", node, " are not "
                          "where the neighbour cache has them");
        return static_cast<const Index *>(cache_.neighbors) + place;
    }

private:
    const ColumnStarts columns_;
    const CachedLists cache_;
};

// The in-neighbours of one edge type: what is cached, and what is asked for.
template <class Local, class Table>
class EdgeReads {
public:
    using Edges = HopEdges<Local, Table>;

    EdgeReads(Edges &edges, const CachedLists &cache)
        : edges_(edges), lists_(edges.type(), cache) {}

    bool is_wide() const { return edges_.type().is_wide; }
    int64_t num_cached() const { return num_cached_; }

    void begin_hop(size_t hop) {
        edges_.begin(hop);
        next_list_ = 0;
        sources_.clear();
    }

    // Lists of the frontier along which something must be read before edges are chosen.
    bool has_lists() const {
        return edges_.needs_lists() && next_list_ < edges_.frontier_size();
    }

    // Whole lists, as many as make max_positions positions, one at least: asks for what lies along
    // them, the indices of cached ones excepted. Returns the number of requests.
    template <class Index>
    size_t draw_lists(int64_t edge_type, int64_t max_positions,
                      std::vector<ReadRequest> &requests) {
        const EdgeType &type = edges_.type();
        first_list_ = next_list_;
        list_indices_.clear();
        int64_t count = 0, num_missed = 0;
        do {
            const NeighborList list = edges_.list(next_list_);
            const int64_t node = edges_.node(next_list_++);
            count += list.degree;
            if (type.time.timing != Timing::sources) continue;
            const bool is_cached = lists_.is_cached(node);
            list_indices_.push_back(is_cached ? lists_.template find<Index>(node, list) : nullptr);
            (is_cached ? num_cached_ : num_missed) += list.degree;
        } while (has_lists() && count + edges_.list(next_list_).degree <= max_positions);
        const size_t before = requests.size();
        const auto ask = [&](Column column, int64_t number, const auto &is_wanted) {
            if (number == 0) return;
            ReadRequest request{edge_type, column, PooledArray<int64_t>(number), number};
            int64_t *position = request.positions.data();
            for (int64_t i = first_list_; i < next_list_; ++i) {
                if (!is_wanted(i)) continue;
                const NeighborList list = edges_.list(i);
                std::iota(position, position + list.degree, list.start);
                position += list.degree;
            }
            requests.push_back(std::move(request));
        };
        const auto all = [](int64_t) { return true; };
        if (type.weight.is_weighted) ask(Column::sums, count, all);
        if (type.time.timing != Timing::none) ask(Column::order, count, all);
        if (type.time.timing == Timing::edges) ask(Column::times, count, all);
        if (type.time.timing == Timing::sources)
            ask(Column::indices, num_missed, [&](int64_t i) { return is_missed(i); });
        return requests.size() - before;
    }

    // Takes them, in the order of the requests, and chooses.
    template <class Index>
    void take_lists(const std::vector<const void *> &fetched) {
        const EdgeType &type = edges_.type();
        const bool is_timed = type.time.timing != Timing::none;
        const void *first = fetched.empty() ? nullptr : fetched.front();
        const void *second = fetched.size() < 2 ? nullptr : fetched.back();
        int64_t offset = 0, missed = 0;
        const auto columns_of = [&](int64_t i) {
            ListColumns columns;
            if (is_timed) {
                columns.order = static_cast<const char *>(first) + offset * (type.time.is_wide ? 4 : 2);
                if (type.time.timing == Timing::edges) {
                    columns.times = static_cast<const int64_t *>(second) + offset;
                } else if (is_missed(i)) {
                    columns.indices = static_cast<const Index *>(second) + missed;
                    missed += edges_.list(i).degree;
                } else {
                    columns.indices = list_indices_[static_cast<size_t>(i - first_list_)];
                }
            } else {
                columns.sums = static_cast<const uint64_t *>(first) + offset;
            }
            offset += edges_.list(i).degree;
            return columns;
        };
        edges_.choose_lists(
            first_list_, next_list_, columns_of,
            [&](int64_t i, const ListColumns &columns, const int64_t *positions, int64_t count) {
                if (!has_sources()) return;
                const auto *neighbors = static_cast<const Index *>(columns.indices);
                const size_t before = sources_.size();
                sources_.resize(before + static_cast<size_t>(count) * sizeof(Index));
                auto *source = reinterpret_cast<Index *>(sources_.data() + before);
                for (int64_t k = 0; k < count; ++k)
                    source[k] = neighbors[positions[k] - edges_.list(i).start];
            });
    }

    // Chooses a hop's edges where nothing was read for it, copies what is cached, and returns the
    // positions to fetch.
    template <class Index>
    void draw_hop(ReadRequest &missed) {
        hop_edges_ = edges_.needs_lists() ? edges_.num_chosen_edges() : edges_.choose();
        copies_.clear();
        runs_.clear();
        if (hop_edges_ == 0 || has_sources()) return;
        missed.positions = PooledArray<int64_t>(hop_edges_);
        divide_hop(missed);
        if (!copies_.empty()) {
            PooledArray<Index> neighbors(hop_edges_);
            copy_cached(neighbors.data());
            neighbors_ = std::move(neighbors);
        }
        num_cached_ += hop_edges_ - missed.count;
    }

    template <class Index>
    void take_hop(const Index *fetched) {
        const Index *all = fetched;
        if (has_sources()) all = reinterpret_cast<const Index *>(sources_.data());
        if (!copies_.empty()) {
            auto *neighbors = static_cast<Index *>(neighbors_.raw());
            for (const Run &run : runs_) {
                std::copy_n(fetched, run.end - run.begin, neighbors + run.begin);
                fetched += run.end - run.begin;
            }
            all = neighbors;
        }
        edges_.check_neighbors(all, edges_.positions(), hop_edges_);
        edges_.relabel(all);
    }

    bool has_columns() const { return column_ < edges_.target_nodes().num_nodes(); }

    // Whole columns, as many as make max_positions positions to fetch.
    template <class Index>
    void draw_columns(int64_t max_positions, ReadRequest &missed) {
        if (column_ == 0 && done_of_column_ == 0) edges_.drop_edges(0);
        pieces_.clear();
        for (; has_columns() && missed.count < max_positions; ++column_) {
            const NeighborList list = edges_.list_of(column_);
            const int64_t node = edges_.target_nodes().ids()[column_];
            if (lists_.is_cached(node)) {
                pieces_.push_back({column_, list, lists_.template find<Index>(node, list)});
                num_cached_ += list.degree;
                continue;
            }
            const int64_t left = list.degree - done_of_column_;
            const int64_t count = std::min(left, max_positions - missed.count);
            pieces_.push_back({column_, {list.start + done_of_column_, count}, nullptr});
            missed.count += count;
            done_of_column_ += count;
            if (count < left) break;
            done_of_column_ = 0;
        }
        missed.positions = PooledArray<int64_t>(missed.count);
        int64_t *position = missed.positions.data();
        for (const Piece &piece : pieces_) {
            if (piece.cached != nullptr) continue;
            std::iota(position, position + piece.list.degree, piece.list.start);
            position += piece.list.degree;
        }
    }

    template <class Index>
    void take_columns(const Index *fetched) {
        for (const Piece &piece : pieces_) {
            const auto *neighbors = static_cast<const Index *>(piece.cached);
            if (neighbors == nullptr) {
                neighbors = fetched;
                fetched += piece.list.degree;
            }
            edges_.reserve_edges(edges_.count_inner_edges(piece.list, neighbors));
            edges_.append_inner_edges(piece.i, piece.list, neighbors);
        }
    }

private:
    struct Copy {
        const void *column;
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
        const void *cached;  // null: to be fetched
    };

    // Whether lists were read with their indices, so that the sources of chosen edges are known.
    bool has_sources() const {
        return edges_.needs_lists() && edges_.type().time.timing == Timing::sources;
    }

    // Whether the indices of the i-th list of the frontier are asked for.
    bool is_missed(int64_t i) const {
        return list_indices_[static_cast<size_t>(i - first_list_)] == nullptr;
    }

    // Tells the edges to copy from the cache from those to fetch.
    void divide_hop(ReadRequest &missed) {
        with_width(is_wide(), [&]<class Index>(Index) {
            const int64_t *positions = edges_.positions();
            int64_t edge = 0;
            edges_.for_each_list([&](int64_t node, int64_t ahead, NeighborList list,
                                     int64_t count) {
                lists_.prefetch(ahead);
                if (count == 0) return;
                if (lists_.is_cached(node)) {
                    copies_.push_back(
                        {lists_.template find<Index>(node, list), list.start, edge, count});
                } else {
                    std::copy_n(positions + edge, count, missed.positions.data() + missed.count);
                    missed.count += count;
                    if (!runs_.empty() && runs_.back().end == edge)
                        runs_.back().end += count;
                    else
                        runs_.push_back({edge, edge + count});
                }
                edge += count;
            });
        });
    }

    template <class Index>
    void copy_cached(Index *neighbors) {
        const int64_t *positions = edges_.positions();
        const size_t last = copies_.size() - 1;
        const auto column_of = [](const Copy &copy) {
            return static_cast<const Index *>(copy.column);
        };
        for (size_t i = 0; i < copies_.size(); ++i) {
            const Copy &ahead = copies_[std::min(i + copy_distance, last)];
            const int64_t asked = std::min(ahead.count, most_prefetched);
            for (int64_t k = ahead.edge; k < ahead.edge + asked; ++k)
                __builtin_prefetch(&column_of(ahead)[positions[k] - ahead.start]);
            const Copy &own = copies_[i];
            for (int64_t k = own.edge; k < own.edge + own.count; ++k)
                neighbors[k] = column_of(own)[positions[k] - own.start];
        }
    }

    Edges &edges_;
    const ListFinder lists_;
    int64_t num_cached_ = 0;

    int64_t hop_edges_ = 0;
    PooledBuffer neighbors_;  // of the hop; unused where nothing is cached
    std::vector<Copy> copies_;
    std::vector<Run> runs_;

    int64_t first_list_ = 0, next_list_ = 0;  // of the frontier: those asked for now
    std::vector<const void *> list_indices_;  // of these; null if they are not cached
    std::vector<char> sources_;               // of the hop's edges, as Index, if it has_sources

    int64_t column_ = 0, done_of_column_ = 0;  // the next to be asked for
    std::vector<Piece> pieces_;
};

template <class Local, class Table>
class Staged final : public StagedBatch {
public:
    Staged(TypedGraph graph, const std::vector<CachedLists> &caches,
           const std::vector<Seeds> &seeds, const SamplingOptions &options,
           int64_t max_column_positions)
        : graph_(std::move(graph)),
          options_(options),
          batch_(graph_, options_),
          max_column_positions_(max_column_positions) {
        for (size_t e = 0; e < caches.size(); ++e) reads_.emplace_back(batch_.edges()[e], caches[e]);
        batch_.add_seeds(seeds);
        settle();
    }

    bool is_done() const override { return state_ == State::done; }

    std::vector<ReadRequest> draw() override {
        expect(State::ready, "draw");
        std::vector<ReadRequest> requests;
        asking_.clear();
        if (!batch_.has_hop()) {
            step_ = Step::columns;
            draw_columns(requests);
        } else {
            if (step_ != Step::lists) begin_hop();
            step_ = has_lists() ? Step::lists : Step::neighbors;
            if (step_ == Step::lists)
                draw_lists(requests);
            else
                draw_neighbors(requests);
        }
        count_cached();
        state_ = State::drawn;
        return requests;
    }

    void take(const std::vector<const void *> &fetched) override {
        expect(State::drawn, "take");
        auto next = fetched.begin();
        for (const auto &[e, count] : asking_) {
            const std::vector<const void *> own(next, next + static_cast<int64_t>(count));
            next += static_cast<int64_t>(count);
            Reads &reads = reads_[e];
            with_width(reads.is_wide(), [&]<class Index>(Index) {
                const auto *neighbors =
                    static_cast<const Index *>(own.empty() ? nullptr : own.front());
                switch (step_) {
                    case Step::lists: reads.template take_lists<Index>(own); break;
                    case Step::neighbors: reads.take_hop(neighbors); break;
                    case Step::columns: reads.take_columns(neighbors); break;
                }
            });
        }
        if (step_ == Step::neighbors) batch_.end_hop();
        settle();
    }

    SampledBatch release() override {
        expect(State::done, "release");
        return batch_.release();
    }

private:
    enum class State { ready, drawn, done, spent };

    // What is asked for: what lies along the lists of a hop, the in-neighbours chosen, or all.
    enum class Step { lists, neighbors, columns };

    struct Asking {
        size_t edge_type;
        size_t num_requests;
    };

    using Reads = EdgeReads<Local, Table>;

    void begin_hop() {
        batch_.begin_hop();
        for (Reads &reads : reads_) reads.begin_hop(batch_.hop());
    }

    bool has_lists() const {
        return std::any_of(reads_.begin(), reads_.end(),
                           [](const Reads &reads) { return reads.has_lists(); });
    }

    void draw_lists(std::vector<ReadRequest> &requests) {
        // Two columns at most for each edge type.
        const auto num_types = std::count_if(
            reads_.begin(), reads_.end(), [](const Reads &reads) { return reads.has_lists(); });
        const int64_t most = max_column_positions_ / (2 * num_types);
        for (size_t e = 0; e < reads_.size(); ++e) {
            if (!reads_[e].has_lists()) continue;
            const size_t count = with_width(reads_[e].is_wide(), [&]<class Index>(Index) {
                return reads_[e].template draw_lists<Index>(static_cast<int64_t>(e), most,
                                                            requests);
            });
            asking_.push_back({e, count});
        }
    }

    void draw_neighbors(std::vector<ReadRequest> &requests) {
        for (size_t e = 0; e < reads_.size(); ++e) {
            ReadRequest request;
            request.edge_type = static_cast<int64_t>(e);
            with_width(reads_[e].is_wide(), [&]<class Index>(Index) {
                reads_[e].template draw_hop<Index>(request);
            });
            ask(e, std::move(request), requests);
        }
    }

    // One edge type at a time.
    void draw_columns(std::vector<ReadRequest> &requests) {
        const auto next = std::find_if(reads_.begin(), reads_.end(),
                                       [](const Reads &reads) { return reads.has_columns(); });
        const auto e = static_cast<size_t>(next - reads_.begin());
        ReadRequest request;
        request.edge_type = static_cast<int64_t>(e);
        with_width(next->is_wide(), [&]<class Index>(Index) {
            next->template draw_columns<Index>(max_column_positions_, request);
        });
        ask(e, std::move(request), requests);
    }

    void ask(size_t e, ReadRequest request, std::vector<ReadRequest> &requests) {
        asking_.push_back({e, request.count > 0 ? size_t{1} : size_t{0}});
        if (request.count > 0) requests.push_back(std::move(request));
    }

    // A call that throws leaves the batch spent.
    void expect(State state, const char *call) {
        if (std::exchange(state_, State::spent) != state)
            throw std::logic_error(std::string(call) +
                                   " was called out of turn, or after a call that failed");
    }

    void settle() {
        const bool has_columns =
            options_.induced && std::any_of(reads_.begin(), reads_.end(), [](const auto &reads) {
                return reads.has_columns();
            });
        state_ = batch_.has_hop() || has_columns ? State::ready : State::done;
        // Before the batches that advance with this one are done.
        if (state_ == State::done) batch_.drop_tables();
    }

    void count_cached() {
        num_cached_ = 0;
        for (const auto &reads : reads_) num_cached_ += reads.num_cached();
    }

    const TypedGraph graph_;
    const SamplingOptions options_;
    BatchSampler<Local, Table> batch_;
    const int64_t max_column_positions_;
    std::vector<Reads> reads_;
    Step step_ = Step::neighbors;
    std::vector<Asking> asking_;  // edge types of the step, in order
    State state_ = State::spent;
};

}  // namespace

template <class Local>
std::unique_ptr<StagedBatch> make_staged_batch(TypedGraph graph, std::vector<CachedLists> caches,
                                               const std::vector<Seeds> &seeds,
                                               const SamplingOptions &options,
                                               int64_t max_column_positions) {
    check_sampling(graph, seeds, options, std::numeric_limits<Local>::max());
    if (max_column_positions < 1)
        throw invalid("max_column_positions must be at least 1, got ", max_column_positions);
    caches.resize(graph.edges.size());
    if (fits_compact_table(graph, options))
        return std::make_unique<Staged<Local, CompactTable>>(std::move(graph), caches, seeds,
                                                             options, max_column_positions);
    return std::make_unique<Staged<Local, WideTable>>(std::move(graph), caches, seeds, options,
                                                      max_column_positions);
}

template std::unique_ptr<StagedBatch> make_staged_batch<int32_t>(TypedGraph,
                                                                 std::vector<CachedLists>,
                                                                 const std::vector<Seeds> &,
                                                                 const SamplingOptions &, int64_t);
template std::unique_ptr<StagedBatch> make_staged_batch<int64_t>(TypedGraph,
                                                                 std::vector<CachedLists>,
                                                                 const std::vector<Seeds> &,
                                                                 const SamplingOptions &, int64_t);

}  // namespace gnnstore
