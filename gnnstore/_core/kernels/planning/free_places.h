// Slots that are free at some places on a line, and the search for the next of them: a union-find
// over the places, so that many searches cost hardly more than one step each.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace gnnstore {

// Places are 0 to size - 1; none has slots at first.
class FreePlaces {
public:
    explicit FreePlaces(int64_t size)
        : counts_(static_cast<size_t>(size), 0), links_(static_cast<size_t>(size) + 1) {
        for (int64_t i = 0; i < size; ++i) links_[at(i)] = i + 1;
        links_[at(size)] = size;
    }

    void put(int64_t place, int64_t count) {
        if (count == 0) return;
        counts_[at(place)] = count;
        links_[at(place)] = place;
    }

    // Takes up to `count` slots at `first` or behind it, the nearest first; returns how many.
    int64_t take(int64_t first, int64_t count) {
        int64_t taken = 0;
        while (taken < count) {
            const int64_t place = find(first);
            if (place == static_cast<int64_t>(counts_.size())) break;
            const int64_t part = std::min(count - taken, counts_[at(place)]);
            taken += part;
            counts_[at(place)] -= part;
            if (counts_[at(place)] == 0) links_[at(place)] = place + 1;
        }
        return taken;
    }

private:
    static size_t at(int64_t i) { return static_cast<size_t>(i); }

    int64_t find(int64_t place) {
        while (links_[at(place)] != place) {
            links_[at(place)] = links_[at(links_[at(place)])];
            place = links_[at(place)];
        }
        return place;
    }

    std::vector<int64_t> counts_;
    std::vector<int64_t> links_;  // a place is its own where slots are free, else points ahead
};

}  // namespace gnnstore
