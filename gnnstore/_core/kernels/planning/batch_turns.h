// The batches of the forward pass of a plan, from the first to the last. Where there is memory for
// two of them, another thread ends the batch before and begins the one behind it while a batch is
// planned: even and odd ones take turns.
#pragma once

#include <cstdint>

#include "kernels/base/parallel.h"

namespace gnnstore {

class BatchTurns {
public:
    // Batches of fewer rows are planned sooner than another thread starts.
    static constexpr int64_t least_rows = 1 << 15;

    // are_two: there is memory for two.
    BatchTurns(int64_t num_batches, bool are_two, Team &team)
        : num_batches_(num_batches), are_two_(are_two), team_(team) {}

    // end(batch) ends a batch; begin(batch) returns a task that begins it.
    template <class Begin, class End>
    void open(int64_t batch, const Begin &begin, const End &end) {
        team_.finish();
        const auto end_before = [batch, end] {
            if (batch > 0) end(batch - 1);
        };
        if (batch == 0 || !are_two_) {
            end_before();
            begin(batch)();
        }
        if (!are_two_) return;
        if (batch + 1 == num_batches_) {
            team_.start(1, [end_before](int64_t) { end_before(); });
            return;
        }
        team_.start(1, [end_before, begin_next = begin(batch + 1)](int64_t) {
            end_before();
            begin_next();
        });
    }

    // After the last batch.
    template <class End>
    void close(const End &end) {
        team_.finish();
        if (num_batches_ > 0) end(num_batches_ - 1);
    }

    // Waits for the other thread, whatever becomes of its work.
    void stop() noexcept {
        try {
            team_.finish();
        } catch (...) {
            // Whoever stops has an error already.
        }
    }

private:
    const int64_t num_batches_;
    const bool are_two_;
    Team &team_;
};

}  // namespace gnnstore
