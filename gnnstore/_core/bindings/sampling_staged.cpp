// Batches that say which in-neighbours they need: the staged half of the sampling group.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings/arrays.h"
#include "bindings/sampled_graph.h"
#include "kernels/sampling/sampling_staged.h"

using namespace gnnstore;
using namespace nb::literals;

namespace {

// Bits, starts, neighbours; see CachedLists.
using CacheArrays = std::tuple<InputArray, InputArray, InputArray>;

CachedLists lists_in(const CacheArrays &cache, const EdgeType &edges) {
    const auto &[bits, starts, neighbors] = cache;
    const int64_t num_words = edges.num_nodes / 64 + (edges.num_nodes % 64 != 0);
    CachedLists lists;
    lists.bits = input_data<uint64_t>(bits, "the cache's bits", "uint64");
    lists.starts = input_data<int64_t>(starts, "the cache's starts", "int64");
    lists.neighbors = ids_in(neighbors, "the cache's neighbors", edges.is_wide);
    lists.num_neighbors = length(neighbors);
    if (length(bits) != num_words || length(starts) != num_words)
        throw invalid("the cache's bits and starts must have ", num_words, " elements for ",
                      edges.num_nodes, " nodes, got ", length(bits), " and ", length(starts));
    return lists;
}

// The kernel's batch, and what it points to.
class PendingBatch {
public:
    PendingBatch(const nb::object &graph, const std::vector<SeedArrays> &seeds, uint64_t seed,
                 uint64_t epoch, uint64_t batch, bool replace, bool disjoint, bool induced,
                 bool latest, int64_t window, const std::string &index_dtype,
                 const std::optional<std::vector<std::optional<CacheArrays>>> &caches,
                 int64_t max_column_positions, const ExcludedByType &excluded)
        : graph_(graph), is_disjoint_(disjoint), index_dtype_(index_dtype) {
        TypedGraph sampled = nb::cast<const SampledGraph &>(graph).without(excluded);
        for (const EdgeType &edges : sampled.edges) 
            widths_.push_back({edges.is_wide, edges.time.is_wide});
        std::vector<CachedLists> lists(sampled.edges.size());
        if (caches) {
            caches_ = *caches;
            if (caches_.size() != lists.size())
                throw invalid("caches must be given for each edge type, or None");
            for (size_t e = 0; e < lists.size(); ++e)
                if (caches_[e]) lists[e] = lists_in(*caches_[e], sampled.edges[e]);
        }
        const std::vector<Seeds> seed_nodes = seeds_in(seeds);
        const SamplingOptions options{
            replace, disjoint, induced, DrawKey{seed, epoch, batch}, latest, window};
        with_integer_dtype("index_dtype", index_dtype, [&]<class Local>(Local) {
            const GilRelease release;
            batch_ = make_staged_batch<Local>(std::move(sampled), std::move(lists), seed_nodes,
                                              options, max_column_positions);
        });
    }

    // Edge types, columns and positions; None at the end.
    nb::object draw() {
        std::vector<ReadRequest> requests;
        bool is_done = false;
        {
            const GilRelease release;
            const std::lock_guard lock(mutex_);
            is_done = batch_->is_done();
            if (!is_done) requests = batch_->draw();
        }
        if (is_done) return nb::none();
        asked_.clear();
        nb::list drawn;
        for (ReadRequest &request : requests) {
            asked_.push_back({request.edge_type, request.column, request.count});
            auto positions = std::make_unique<PooledArray<int64_t>>(std::move(request.positions));
            int64_t *data = positions->data();
            drawn.append(nb::make_tuple(request.edge_type,
                                        static_cast<int64_t>(request.column),
                                        owned_vector(data, request.count, std::move(positions))));
        }
        return drawn;
    }

    void take(const std::vector<InputArray> &fetched) {
        require(fetched.size() == asked_.size(), "take() needs an array for each of the ",
                asked_.size(), " requests, got ", fetched.size());
        std::vector<const void *> elements;
        for (size_t i = 0; i < fetched.size(); ++i) {
            const auto [edge_type, column, count] = asked_[i];
            elements.push_back(elements_in(fetched[i], static_cast<size_t>(edge_type), column));
            require(length(fetched[i]) == count, "there must be one element for each of the ",
                    count, " positions, got ", length(fetched[i]));
        }
        const GilRelease release;
        const std::lock_guard lock(mutex_);
        batch_->take(elements);
    }

    nb::tuple result() {
        SampledBatch batch;
        {
            const GilRelease release;
            const std::lock_guard lock(mutex_);
            batch = batch_->release();
        }
        return with_integer_dtype("index_dtype", index_dtype_, [&]<class Local>(Local) {
            return batch_tuple<Local>(std::move(batch), is_disjoint_);
        });
    }

    int64_t num_cached() const { return batch_->num_cached(); }

private:
    struct Asked {
        int64_t edge_type;
        Column column;
        int64_t count;
    };
    struct Widths {
        bool of_indices, of_order;
    };

    const void *elements_in(const InputArray &fetched, size_t edge_type, Column column) const {
        const Widths &is_wide = widths_[edge_type];
        switch (column) {
            case Column::indices: return ids_in(fetched, "neighbors", is_wide.of_indices);
            case Column::order: return order_in(fetched, is_wide.of_order);
            case Column::times: return input_data<int64_t>(fetched, "times", "int64");
            case Column::sums: return input_data<uint64_t>(fetched, "sums of weights", "uint64");
        }
        throw std::logic_error("no such column");
    }

    const nb::object graph_;
    std::vector<std::optional<CacheArrays>> caches_;
    const bool is_disjoint_;
    const std::string index_dtype_;
    std::vector<Widths> widths_;
    std::mutex mutex_;
    std::vector<Asked> asked_;
    std::unique_ptr<StagedBatch> batch_;
};

}  // namespace

void bind_staged_sampling(nb::module_ &m) {
    nb::class_<PendingBatch>(m, "StagedBatch")
        .def(nb::init<const nb::object &, const std::vector<SeedArrays> &, uint64_t, uint64_t,
                      uint64_t, bool, bool, bool, bool, int64_t, const std::string &,
                      const std::optional<std::vector<std::optional<CacheArrays>>> &, int64_t,
                      const ExcludedByType &>(),
             "graph"_a, "seeds"_a.noconvert(), nb::kw_only(), "seed"_a, "epoch"_a, "batch"_a,
             "replace"_a = false, "disjoint"_a = false, "induced"_a = false,
             "latest"_a = false, "window"_a = 0, "index_dtype"_a = "int64", "caches"_a = nb::none(),
             "max_column_positions"_a = int64_t{1} << 20, "excluded"_a = nb::none())
        .def("draw", &PendingBatch::draw)
        .def("take", &PendingBatch::take, "fetched"_a.noconvert())
        .def("result", &PendingBatch::result)
        .def_prop_ro("num_cached", &PendingBatch::num_cached);
}
