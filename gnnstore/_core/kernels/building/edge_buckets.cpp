#include "kernels/building/edge_buckets.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <string>
#include <tuple>
#include <utility>

#include "kernels/base/errors.h"
#include "kernels/base/parallel.h"
#include "kernels/building/csc_build.h"

namespace gnnstore {
namespace {

// 2^14 edges are 0.3 MB, in the orders of sources and of columns; lines of 2^12 buckets, 0.5.
constexpr BucketGoal goal{1 << 14, 1 << 12};
// A megabyte of each output: enough for a sequential write, and a piece stays in the cache until
// it is written.
constexpr int64_t piece_edges = 1 << 18;
constexpr int64_t max_chunk_edges = 1 << 11;
constexpr int64_t slab_edges = 1 << 19;
// Sources are sorted by the upper digit of the bits in which they differ, or two where a column is
// long. Edges that are still out of order then are moved into place by insertion, as long as that
// takes at most so many moves for each edge of a column.
constexpr int digit_bits = 11;
constexpr uint64_t num_of_digits = uint64_t{1} << digit_bits, digit_mask = num_of_digits - 1;
constexpr int64_t long_column = 1 << 12;
constexpr int64_t max_moves = 8;

// Sorts the edges of a column, which mostly are in order already.
void finish_column(uint64_t *begin, uint64_t *end) {
    int64_t moves = max_moves * (end - begin);
    for (uint64_t *edge = begin + 1; edge < end; ++edge) {
        const uint64_t moved = *edge;
        if (edge[-1] <= moved) continue;
        uint64_t *to = edge;
        for (; to > begin && to[-1] > moved; --to) *to = to[-1];
        *to = moved;
        moves -= edge - to;
        if (moves < 0) return std::sort(begin, end);
    }
}

}  // namespace

struct EdgeBuckets::Scratches {
    explicit Scratches(int64_t num_edges)
        : places(num_of_digits), edges(num_edges), sorted(num_edges), lows(num_edges) {}

    std::vector<Run> runs;
    std::vector<uint32_t> places, next;
    const PooledArray<uint64_t> edges, sorted;
    const PooledArray<uint16_t> lows;
};

EdgeBuckets::EdgeBuckets(int64_t num_nodes, int num_threads)
    : num_nodes_(num_nodes),
      num_threads_(num_threads),
      bins_(num_nodes),
      stream_(stream_copy()),
      counts_(bins_.count) {
    check_num_threads(num_threads);
    if (num_nodes < 0 || num_nodes > max_nodes)
        throw invalid("num_nodes must be in [0, 2^27], got ", num_nodes);
}

void EdgeBuckets::sample(const int32_t *targets, int64_t num_targets) {
    const std::lock_guard lock(mutex_);
    if (num_planned_ >= 0) throw invalid("the buckets are planned already");
    check_below(targets, num_targets);
    for (int64_t i = 0; i < num_targets; ++i) ++counts_[bins_.of(targets[i])];
}

void EdgeBuckets::check_below(const int32_t *ids, int64_t num_ids) const {
    if (!all_below(ids, num_ids, num_nodes_))
        throw out_of_range("an edge's id is outside [0, ", num_nodes_, ")");
}

int64_t EdgeBuckets::plan(int64_t num_edges) {
    const std::lock_guard lock(mutex_);
    if (num_planned_ >= 0) throw invalid("the buckets are planned already");
    if (num_edges < 0 || num_edges > std::numeric_limits<int32_t>::max())
        throw invalid("num_edges must be in [0, 2^31), got ", num_edges);
    int64_t num_sampled = 0;
    for (const int64_t count : counts_) num_sampled += count;
    const double scale = static_cast<double>(num_edges) /
                         static_cast<double>(std::max<int64_t>(1, num_sampled));
    for (int64_t &count : counts_)
        count = static_cast<int64_t>(static_cast<double>(count) * scale);
    plan_ = plan_buckets(bins_, counts_, num_nodes_, int64_t{1} << low_bits, goal);
    num_planned_ = num_edges;
    // Room that is left in the last chunks is at most an eighth of all.
    const auto num_chains = static_cast<int64_t>(plan_.buckets.size()) * num_threads_;
    chunk_edges_ = static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(
        std::clamp(num_edges / num_chains / 8, line_edges, max_chunk_edges))));
    const auto none = std::make_shared<const Sizes>(plan_.buckets.size());
    spans_.resize(static_cast<size_t>(num_threads_));
    for (Span &span : spans_) {
        span.latest.resize(plan_.buckets.size());
        for (const Bucket &bucket : plan_.buckets)
            span.chains.push_back({nullptr, 0, static_cast<int32_t>(bucket.first_target)});
        span.chunks.resize(plan_.buckets.size());
        span.sizes = none;
        idle_spans_.push_back(&span);
    }
    int64_t largest = 0;
    for (const Bucket &bucket : plan_.buckets) largest = std::max(largest, bucket.num_edges());
    return largest;
}

EdgeBuckets::Span &EdgeBuckets::take_span() {
    std::unique_lock lock(mutex_);
    has_idle_span_.wait(lock, [this] { return !idle_spans_.empty(); });
    Span &span = *idle_spans_.back();
    idle_spans_.pop_back();
    return span;
}

void EdgeBuckets::add(const int32_t *sources, const int32_t *targets, int64_t num_edges,
                      int64_t first_position) {
    {
        const std::lock_guard lock(mutex_);
        if (num_planned_ < 0 || is_finished_)
            throw invalid("edges are added when the buckets are planned");
        if (num_edges > num_planned_ - num_taken_ || first_position < 0 ||
            first_position > num_planned_ - num_edges)
            throw invalid("there are more edges than the buckets were planned for");
        num_taken_ += num_edges;  // for good: what fails cannot be finished
    }
    const auto give_back = [this](Span *span) {
        const std::lock_guard lock(mutex_);
        idle_spans_.push_back(span);
        has_idle_span_.notify_one();
    };
    const std::unique_ptr<Span, decltype(give_back)> span(&take_span(), give_back);
    for (int64_t begin = 0; begin < num_edges; begin += int64_t{1} << place_bits) {
        const int64_t size = std::min(num_edges - begin, int64_t{1} << place_bits);
        deal(*span, sources + begin, targets + begin, size);
        auto sizes = std::make_shared<Sizes>();
        for (const Chain &chain : span->chains) sizes->push_back(chain.size);
        const std::lock_guard lock(mutex_);
        auto begins = std::exchange(span->sizes, std::move(sizes));
        rounds_.push_back({first_position + begin, span.get(), std::move(begins), span->sizes});
        num_dealt_ += size;
    }
}

// Lines of each bucket are gathered in the cache and then written past it, as in csc_from_coo.
void EdgeBuckets::deal(Span &span, const int32_t *sources, const int32_t *targets,
                       int64_t num_edges) {
    const uint16_t *const bucket_of_bin = plan_.bucket_of_bin.data();
    const TargetBins bins = bins_;
    const StreamCopy stream = stream_;
    const int64_t chunk_edges = chunk_edges_;
    Line *const latest = span.latest.data();
    Chain *const chains = span.chains.data();
    for (int64_t first = 0; first < num_edges; first += check_edges) {
        const int64_t end = std::min(num_edges, first + check_edges);
        check_below(targets + first, end - first);
        check_below(sources + first, end - first);
        for (int64_t i = first; i < end; ++i) {
            const int32_t target = targets[i];
            const size_t bucket = bucket_of_bin[bins.of(target)];
            Chain &chain = chains[bucket];
            const auto low = static_cast<uint64_t>(target - chain.first_target);
            const uint32_t place = chain.size++;
            const uint32_t slot = place % line_edges;
            Line &line = latest[bucket];
            line.edges[slot] = low << (source_bits + place_bits) |
                               static_cast<uint64_t>(sources[i]) << place_bits |
                               static_cast<uint64_t>(i);
            if (slot + 1 < line_edges) continue;
            if (((place - slot) & (chunk_edges - 1)) == 0) {
                chain.next = new_chunk(span);
                span.chunks[bucket].push_back(chain.next);
            }
            auto *const out = reinterpret_cast<uint8_t *>(chain.next);
            const auto *const in = reinterpret_cast<const uint8_t *>(line.edges);
            if (stream)
                stream(out, in, sizeof(Line));
            else
                std::memcpy(out, in, sizeof(Line));
            chain.next += line_edges;
        }
    }
    if (stream) stream_fence();
}

void EdgeBuckets::give(void *memory, int64_t num_bytes) {
    {
        const std::lock_guard lock(mutex_);
        require(num_planned_ >= 0, "memory is given when the buckets are planned");
    }
    const std::lock_guard lock(given_mutex_);
    const auto place = reinterpret_cast<uintptr_t>(memory);
    const auto skipped = static_cast<int64_t>(-place % stream_line_bytes);
    const int64_t num_edges = (num_bytes - skipped) / static_cast<int64_t>(sizeof(uint64_t));
    if (num_edges < chunk_edges_) return;
    given_.emplace_back(reinterpret_cast<uint64_t *>(place + static_cast<uintptr_t>(skipped)),
                        num_edges);
}

uint64_t *EdgeBuckets::new_chunk(Span &span) {
    if (span.left < chunk_edges_) {
        const std::lock_guard lock(given_mutex_);
        if (given_.empty()) {
            span.slabs.emplace_back(slab_edges * static_cast<int64_t>(sizeof(uint64_t)));
            span.next = static_cast<uint64_t *>(span.slabs.back().raw());
            span.left = slab_edges;
        } else {
            auto &[memory, size] = given_.back();
            span.next = memory;
            span.left = std::min(size, slab_edges);
            memory += span.left;
            size -= span.left;
            if (size < chunk_edges_) given_.pop_back();
        }
    }
    span.left -= chunk_edges_;
    return std::exchange(span.next, span.next + chunk_edges_);
}

int64_t EdgeBuckets::finish() {
    const std::lock_guard lock(mutex_);
    if (num_dealt_ != num_planned_ || is_finished_)
        throw invalid("there are fewer edges than the buckets were planned for");
    is_finished_ = true;
    std::ranges::sort(rounds_, {}, &Round::first_position);
    int64_t begin = 0, largest = 0;
    for (size_t i = 0; i < plan_.buckets.size(); ++i) {
        Bucket &bucket = plan_.buckets[i];
        bucket.begin = begin;
        for (const Span &span : spans_) begin += span.chains[i].size;
        bucket.end = begin;
        largest = std::max(largest, bucket.num_edges());
        if (pieces_.empty() || bucket.end - pieces_.back().begin > piece_edges) {
            const auto number = static_cast<int64_t>(i);
            pieces_.push_back({number, number, bucket.first_target, bucket.first_target,
                               bucket.begin, bucket.begin});
        }
        Piece &piece = pieces_.back();
        ++piece.last_bucket;
        piece.last_target = bucket.last_target;
        piece.end = bucket.end;
    }
    return largest;
}

// Finds the edges of a bucket in the order of their positions.
void EdgeBuckets::find_runs(size_t bucket, std::vector<Run> &runs) const {
    runs.clear();
    for (const Round &round : rounds_) {
        const Span &span = *round.span;
        const int64_t end = (*round.ends)[bucket], size = span.chains[bucket].size;
        const int64_t written = size - size % line_edges;
        for (int64_t begin = (*round.begins)[bucket]; begin < end;) {
            const int64_t row = begin & (chunk_edges_ - 1);
            Run run{nullptr, end - begin, round.first_position};
            if (begin >= written) {  // they never left the latest line
                run.edges = span.latest[bucket].edges + begin % line_edges;
            } else {
                run.edges = span.chunks[bucket][static_cast<size_t>(begin / chunk_edges_)] + row;
                run.size = std::min({end, written, begin - row + chunk_edges_}) - begin;
            }
            runs.push_back(run);
            begin += run.size;
        }
    }
}

void EdgeBuckets::sort(int64_t number, int64_t *indptr, int32_t *sources, int32_t *ids) const {
    const Piece &piece = this->piece(number);
    const int64_t most = std::min(csc_group_edges(num_planned_), int64_t{1} << place_bits);
    int64_t largest = 0;
    for (int64_t i = piece.first_bucket; i < piece.last_bucket; ++i) {
        const int64_t size = plan_.buckets[static_cast<size_t>(i)].num_edges();
        if (size <= most) largest = std::max(largest, size);
    }
    Scratches scratches(largest);
    indptr[0] = piece.begin;
    for (int64_t i = piece.first_bucket; i < piece.last_bucket; ++i) {
        const Bucket &bucket = plan_.buckets[static_cast<size_t>(i)];
        const int64_t from = bucket.begin - piece.begin;
        int64_t *const starts = indptr + (bucket.first_target - piece.first_target);
        int32_t *const out = ids ? ids + from : nullptr;
        find_runs(static_cast<size_t>(i), scratches.runs);
        if (bucket.num_edges() <= most)
            sort_small(bucket, starts, sources + from, out, scratches);
        else
            sort_large(bucket, starts, sources + from, out, scratches.runs);
        const int64_t num_columns = bucket.last_target - bucket.first_target;
        for (int64_t column = 1; column <= num_columns; ++column) starts[column] += bucket.begin;
    }
}

// By upper digits of sources, then by columns, and then what is left to do in columns.
void EdgeBuckets::sort_small(const Bucket &bucket, int64_t *indptr, int32_t *sources,
                             int32_t *ids, Scratches &scratches) const {
    const auto num_columns = static_cast<size_t>(bucket.last_target - bucket.first_target);
    const int64_t size = bucket.num_edges();
    scratches.next.assign(num_columns + 1, 0);
    uint32_t *const next = scratches.next.data();
    uint32_t *const places = scratches.places.data();
    const auto clear = [places] { std::fill_n(places, num_of_digits, 0); };
    // Mostly sources differ in all bits that ids have.
    const int id_bits = std::bit_width(static_cast<uint64_t>(std::max<int64_t>(1, num_nodes_) - 1));
    const int id_shift = std::max(0, id_bits - digit_bits);
    uint64_t all = ~uint64_t{0}, any = 0, last = 0;
    bool is_sorted = true;
    clear();
    for (const Run &run : scratches.runs)
        for (int64_t i = 0; i < run.size; ++i) {
            const uint64_t source = source_of(run.edges[i]);
            ++next[low_of(run.edges[i])];
            ++places[source >> id_shift];
            all &= source;
            any |= source;
            is_sorted &= source >= last;
            last = source;
        }
    uint32_t sum = 0, longest = 0;
    for (size_t column = 0; column < num_columns; ++column) {
        longest = std::max(longest, next[column]);
        sum += std::exchange(next[column], sum);
    }
    const int differing = size == 0 ? 0 : static_cast<int>(std::bit_width(all ^ any));
    // Exports are often sorted by sources; then columns need no sort.
    const int num_digits =
        is_sorted || longest < long_column || differing <= digit_bits ? 1 : 2;
    const int shift = std::max(0, differing - num_digits * digit_bits);

    // Edges as (source, position), and beside them their columns.
    uint64_t *edges = scratches.edges.data();
    uint16_t *lows = scratches.lows.data();
    const auto to_starts = [places] {
        uint32_t begin = 0;
        for (uint64_t digit = 0; digit < num_of_digits; ++digit)
            begin += std::exchange(places[digit], begin);
    };
    if (!is_sorted && shift != id_shift) {
        clear();
        for (const Run &run : scratches.runs)
            for (int64_t i = 0; i < run.size; ++i)
                ++places[source_of(run.edges[i]) >> shift & digit_mask];
    }
    to_starts();
    uint32_t count = 0;
    for (const Run &run : scratches.runs)
        for (int64_t i = 0; i < run.size; ++i) {
            const uint64_t edge = run.edges[i], source = source_of(edge);
            const uint32_t to = is_sorted ? count++ : places[source >> shift & digit_mask]++;
            edges[to] = source << 32 |
                        (static_cast<uint64_t>(run.first_position) + place_of(edge));
            lows[to] = static_cast<uint16_t>(low_of(edge));
        }
    PooledArray<uint64_t> other_edges;
    PooledArray<uint16_t> other_lows;
    if (num_digits == 2) {
        other_edges = PooledArray<uint64_t>(size);
        other_lows = PooledArray<uint16_t>(size);
        const int upper = 32 + shift + digit_bits;
        clear();
        for (int64_t i = 0; i < size; ++i) ++places[edges[i] >> upper & digit_mask];
        to_starts();
        for (int64_t i = 0; i < size; ++i) {
            const uint32_t to = places[edges[i] >> upper & digit_mask]++;
            other_edges[to] = edges[i];
            other_lows[to] = lows[i];
        }
        edges = other_edges.data();
        lows = other_lows.data();
    }
    uint64_t *const sorted = scratches.sorted.data();
    for (int64_t i = 0; i < size; ++i) sorted[next[lows[i]]++] = edges[i];
    for (size_t column = 0, begin = 0; column < num_columns; begin = next[column++]) {
        if (shift > 0 && !is_sorted) finish_column(sorted + begin, sorted + next[column]);
        indptr[column + 1] = next[column];
    }
    for (int64_t i = 0; i < size; ++i) sources[i] = static_cast<int32_t>(sorted[i] >> 32);
    if (ids)
        for (int64_t i = 0; i < size; ++i) ids[i] = static_cast<int32_t>(sorted[i]);
}

// A bucket that scratch memory for all of its edges at once would be too large for.
void EdgeBuckets::sort_large(const Bucket &bucket, int64_t *indptr, int32_t *sources,
                             int32_t *ids, const std::vector<Run> &runs) const {
    const PooledArray<uint16_t> lows(bucket.num_edges());
    int64_t count = 0;
    for (const Run &run : runs)
        for (int64_t i = 0; i < run.size; ++i, ++count) {
            const uint64_t edge = run.edges[i];
            sources[count] = static_cast<int32_t>(source_of(edge));
            lows[count] = static_cast<uint16_t>(low_of(edge));
            if (ids)
                ids[count] = static_cast<int32_t>(run.first_position +
                                                  static_cast<int64_t>(place_of(edge)));
        }
    ColumnSorter<int32_t, int32_t, uint16_t> sorter(num_nodes_, indptr, sources, ids, lows.data());
    const Bucket own{0, bucket.last_target - bucket.first_target, 0, bucket.num_edges()};
    sort_bucket(sorter, own, sources, ids, lows.data(), csc_group_edges(num_planned_));
}

}  // namespace gnnstore
