// Windows of a trace, in which next uses are looked for: see NextUses.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace gnnstore {

class TraceWindows {
public:
    // Accesses of a window: they are counted in 16 bits.
    static constexpr int64_t longest = (1 << 16) - 1;

    // Windows whose ids are read at once: all accesses from `begin` to `end`.
    struct Stretch {
        int64_t first_window, end_window;
        int64_t begin, end;

        int64_t size() const { return end - begin; }
    };

    // Windows of equal length, whichever batches they cut. Each is a stretch.
    static TraceWindows equal(int64_t num_ids) {
        TraceWindows windows;
        for (int64_t begin = 0; begin < num_ids; begin += equal_size)
            windows.add(begin, std::min(begin + equal_size, num_ids));
        return windows;
    }

    // Stretches of whole batches: one batch, cut into windows, or as many as fit in one window.
    static TraceWindows of_batches(const int64_t *offsets, int64_t num_batches) {
        TraceWindows windows;
        for (int64_t first = 0, end; first < num_batches; first = end) {
            end = first + 1;
            while (end < num_batches && offsets[end + 1] - offsets[first] <= longest) ++end;
            if (offsets[end] > offsets[first]) windows.add(offsets[first], offsets[end]);
        }
        return windows;
    }

    int64_t num_windows() const { return static_cast<int64_t>(begins_.size()) - 1; }
    int64_t begin(int64_t w) const { return begins_[static_cast<size_t>(w)]; }
    int64_t end(int64_t w) const { return begin(w + 1); }
    // The window that access k is in.
    int64_t at(int64_t k) const {
        return std::upper_bound(begins_.begin(), begins_.end(), k) - begins_.begin() - 1;
    }

    const std::vector<Stretch> &stretches() const { return stretches_; }
    int64_t longest_stretch() const {
        int64_t found = 0;
        for (const Stretch &stretch : stretches_) found = std::max(found, stretch.size());
        return found;
    }

private:
    // In a core's second cache beside the groups' places. Not nearly a power of two: a group's parts
    // of all windows would compete for few sets of the cache.
    static constexpr int64_t equal_size = 50'000;

    TraceWindows() = default;

    void add(int64_t begin, int64_t end) {
        const int64_t first = num_windows(), size = end - begin;
        const int64_t num_parts = (size + longest - 1) / longest;
        for (int64_t i = 1; i <= num_parts; ++i) begins_.push_back(begin + size * i / num_parts);
        stretches_.push_back({first, num_windows(), begin, end});
    }

    std::vector<int64_t> begins_{0};  // and the end of the last
    std::vector<Stretch> stretches_;
};

}  // namespace gnnstore
