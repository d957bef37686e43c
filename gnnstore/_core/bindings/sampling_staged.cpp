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
#include "bindings/sampled_batch.h"
#include "kernels/sampling/sampling_staged.h"

using namespace gnnstore;
using namespace nb::literals;

namespace {

// Bits, starts, neighbours; see CachedLists.
using CacheArrays = std::tuple<InputArray, InputArray, InputArray>;

template <class Index>
CachedLists<Index> lists_in(const CacheArrays &cache, int64_t num_nodes) {
    const auto &[bits, starts, neighbors] = cache;
    const int64_t num_words = num_nodes / 64 + (num_nodes % 64 != 0);
    const char *dtype = sizeof(Index) == 4 ? "int32, as indices are" : "int64, as indices are";
    CachedLists<Index> lists;
    lists.bits = input_data<uint64_t>(bits, "the cache's bits", "uint64");
    lists.starts = input_data<int64_t>(starts, "the cache's starts", "int64");
    lists.neighbors = input_data<Index>(neighbors, "the cache's neighbors", dtype);
    lists.num_neighbors = length(neighbors);
    if (length(bits) != num_words || length(starts) != num_words)
        throw std::invalid_argument("the cache's bits and starts must have " +
                                    std::to_string(num_words) + " elements for " +
                                    std::to_string(num_nodes) + " nodes, got " +
                                    std::to_string(length(bits)) + " and " +
                                    std::to_string(length(starts)));
    return lists;
}

// The kernel's batch, and what it points to.
class PendingBatch {
public:
    PendingBatch(const InputArray &indptr, const InputArray &seeds, std::vector<int64_t> fanouts,
                 int64_t num_edges, const std::string &indices_dtype, uint64_t seed,
                 uint64_t epoch, uint64_t batch, std::optional<int64_t> num_src_nodes,
                 bool replace, bool disjoint, bool induced, const std::string &index_dtype,
                 const std::optional<CacheArrays> &cache, int64_t max_column_positions,
                 const std::optional<ExcludedArrays> &excluded)
        : indptr_(indptr), cache_(cache), is_disjoint_(disjoint), index_dtype_(index_dtype) {
        if (num_edges < 0)
            throw std::invalid_argument("num_edges must not be negative, got " +
                                        std::to_string(num_edges));
        const ColumnStarts columns = columns_of(indptr, num_edges, num_src_nodes);
        const int64_t *seed_ids = input_data<int64_t>(seeds, "seeds", "int64");
        const SamplingOptions options{std::move(fanouts), replace, disjoint, induced,
                                      DrawKey{seed, epoch, batch}, excluded_in(excluded)};
        with_integer_dtype("indices_dtype", indices_dtype, [&]<class Index>(Index) {
            CachedLists<Index> lists;
            if (cache_) lists = lists_in<Index>(*cache_, columns.num_nodes);
            read_neighbors_ = [](const InputArray &neighbors) -> const void * {
                const char *dtype =
                    sizeof(Index) == 4 ? "int32, as indices are" : "int64, as indices are";
                return input_data<Index>(neighbors, "neighbors", dtype);
            };
            with_integer_dtype("index_dtype", index_dtype, [&]<class Local>(Local) {
                const GilRelease release;
                batch_ = make_staged_batch<Index, Local>(columns, lists, seed_ids, length(seeds),
                                                         options, max_column_positions);
            });
        });
    }

    nb::object draw() {
        auto positions = std::make_unique<PooledArray<int64_t>>();
        {
            const GilRelease release;
            const std::lock_guard lock(mutex_);
            if (batch_->is_done()) {
                positions = nullptr;
            } else {
                num_asked_ = batch_->draw();
                *positions = batch_->take_positions();
            }
        }
        if (!positions) return nb::none();
        int64_t *data = positions->data();
        return nb::cast(owned_vector(data, num_asked_, std::move(positions)));
    }

    void take(const InputArray &neighbors) {
        const void *ids = read_neighbors_(neighbors);
        if (length(neighbors) != num_asked_)
            throw std::invalid_argument("neighbors must have one id for each of the " +
                                        std::to_string(num_asked_) + " positions, got " +
                                        std::to_string(length(neighbors)));
        const GilRelease release;
        const std::lock_guard lock(mutex_);
        batch_->take(ids);
    }

    nb::tuple result() {
        SampledBatch batch;
        {
            const GilRelease release;
            const std::lock_guard lock(mutex_);
            batch = batch_->release();
        }
        return with_integer_dtype("index_dtype", index_dtype_, [&]<class Local>(Local) {
            return to_tuple<Local>(std::move(batch), is_disjoint_);
        });
    }

    int64_t num_cached() const { return batch_->num_cached(); }

private:
    const InputArray indptr_;
    const std::optional<CacheArrays> cache_;
    const bool is_disjoint_;
    const std::string index_dtype_;
    const void *(*read_neighbors_)(const InputArray &) = nullptr;
    std::mutex mutex_;
    int64_t num_asked_ = 0;
    std::unique_ptr<StagedBatch> batch_;
};

}  // namespace

void bind_staged_sampling(nb::module_ &m) {
    nb::class_<PendingBatch>(m, "StagedBatch")
        .def(nb::init<const InputArray &, const InputArray &, std::vector<int64_t>, int64_t,
                      const std::string &, uint64_t, uint64_t, uint64_t, std::optional<int64_t>,
                      bool, bool, bool, const std::string &, const std::optional<CacheArrays> &,
                      int64_t, const std::optional<ExcludedArrays> &>(),
             "indptr"_a.noconvert(), "seeds"_a.noconvert(), "fanouts"_a, nb::kw_only(),
             "num_edges"_a, "indices_dtype"_a, "seed"_a, "epoch"_a, "batch"_a,
             "num_src_nodes"_a = nb::none(), "replace"_a = false, "disjoint"_a = false,
             "induced"_a = false, "index_dtype"_a = "int64", "cache"_a = nb::none(),
             "max_column_positions"_a = int64_t{1} << 20, "excluded"_a = nb::none())
        .def("draw", &PendingBatch::draw)
        .def("take", &PendingBatch::take, "neighbors"_a.noconvert())
        .def("result", &PendingBatch::result)
        .def_prop_ro("num_cached", &PendingBatch::num_cached);
}
