#include "kernels/building/column_buckets.h"

#include <bit>
#include <numeric>

namespace gnnstore {
namespace {

// Edges are counted by bins of targets, and bins are joined to buckets of about as many edges.
// A table of bins stays in the second-level cache, and is fine enough that hubs, and ids that
// crowd at one end, hardly ever make a bucket too large.
constexpr int max_bin_bits = 14;

uint64_t largest_of(int64_t num_targets) {
    return static_cast<uint64_t>(std::max<int64_t>(1, num_targets) - 1);
}

}  // namespace

TargetBins::TargetBins(int64_t num_targets)
    : shift(std::max(0, static_cast<int>(std::bit_width(largest_of(num_targets))) - max_bin_bits)),
      count(static_cast<size_t>(largest_of(num_targets) >> shift) + 1) {}

BucketPlan plan_buckets(const TargetBins &bins, const std::vector<int64_t> &counts,
                        int64_t num_targets, int64_t max_targets, const BucketGoal &aim) {
    const int64_t num_edges = std::accumulate(counts.begin(), counts.end(), int64_t{0});
    const int64_t goal = std::max(aim.num_edges, num_edges / aim.max_buckets);
    BucketPlan plan;
    plan.bucket_of_bin.resize(bins.count);
    int64_t begin = 0;
    for (size_t bin = 0; bin < bins.count; ++bin) {
        const auto first = static_cast<int64_t>(bin) << bins.shift;
        const int64_t last = std::min(num_targets, first + (int64_t{1} << bins.shift));
        Bucket *open = plan.buckets.empty() ? nullptr : &plan.buckets.back();
        if (open == nullptr || open->num_edges() + counts[bin] > goal ||
            last - open->first_target > max_targets) {
            plan.buckets.push_back({first, first, begin, begin});
            open = &plan.buckets.back();
        }
        open->last_target = last;
        open->end = begin += counts[bin];
        plan.bucket_of_bin[bin] = static_cast<uint16_t>(plan.buckets.size() - 1);
    }
    return plan;
}

}  // namespace gnnstore
