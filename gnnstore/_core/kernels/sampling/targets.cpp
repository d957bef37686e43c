#include "kernels/sampling/targets.h"

#include <algorithm>

#include "kernels/base/errors.h"

namespace gnnstore {

template <class Id>
std::vector<int32_t> count_targets(const Id *targets, int64_t num_edges) {
    if (num_edges == 0) return {};
    const auto last = static_cast<int64_t>(targets[num_edges - 1]);
    require(last >= 0, "targets must not be negative, got ", last);
    std::vector<int32_t> found(static_cast<size_t>(last) + 1);
    int64_t begin = 0;
    while (begin < num_edges) {
        const Id target = targets[begin];
        int64_t end = begin + 1;
        while (end < num_edges && targets[end] == target) ++end;
        if (target < 0 || target > last || (end < num_edges && targets[end] < target))
            throw invalid("targets must ascend from 0, but ", target, " is at position ", end - 1);
        found[static_cast<size_t>(target)] = static_cast<int32_t>(end - begin);
        begin = end;
    }
    return found;
}

template std::vector<int32_t> count_targets(const int32_t *, int64_t);
template std::vector<int32_t> count_targets(const int64_t *, int64_t);

template <class Source, class Count, class Id>
void expand_edges(const Source *sources, int64_t num_edges, const Count *num_incoming,
                  int64_t num_targets, Id *index) {
    std::copy_n(sources, num_edges, index);
    Id *const targets = index + num_edges;
    int64_t done = 0;
    for (int64_t target = 0; target < num_targets; ++target) {
        const auto count = static_cast<int64_t>(num_incoming[target]);
        if (count < 0 || count > num_edges - done)
            throw invalid("node ", target, " has ", count, " incoming edges, of which ",
                          num_edges - done, " are left");
        std::fill_n(targets + done, count, static_cast<Id>(target));
        done += count;
    }
    require(done == num_edges, done, " edges are into nodes, and there are ", num_edges);
}

#define EXPAND(Source, Count)                                                                \
    template void expand_edges(const Source *, int64_t, const Count *, int64_t, int32_t *); \
    template void expand_edges(const Source *, int64_t, const Count *, int64_t, int64_t *);
EXPAND(int32_t, int32_t)
EXPAND(int32_t, int64_t)
EXPAND(int64_t, int32_t)
EXPAND(int64_t, int64_t)
#undef EXPAND

}  // namespace gnnstore
