// Progress of one read: the rules by which every engine judges the answers of the system,
// so that none takes a short read for a whole one, and none asks for ever.
#pragma once

#include <chrono>
#include <cstdint>

#include "kernels/base/errors.h"
#include "kernels/reading/read_engine.h"

namespace gnnstore {

// How long something that may come right by itself is tried again: 2 s in all, with pauses
// that double from 0.1 ms to 50 ms. A disk under load is ready again after milliseconds;
// a loop that waits for a batch should get the error after seconds, not minutes.
class Patience {
public:
    using Clock = std::chrono::steady_clock;

    // Whether to try again, which counts from the first call since reset().
    bool is_left();
    // How long to pause before that.
    Clock::duration next_pause();
    void reset() { has_begun_ = false; }

private:
    bool has_begun_ = false;
    Clock::time_point end_{};
    Clock::duration pause_{};
};

class ReadProgress {
public:
    enum class Step {
        finished,
        again,  // read on, at once
        later,  // read on, not before not_before()
    };

    ReadProgress() = default;
    explicit ReadProgress(const Read &read) : read_(read) {}

    // The rest of the read, to be submitted next.
    int64_t offset() const { return read_.offset + done_; }
    int64_t length() const { return read_.length - done_; }
    uint8_t *out() const { return read_.out + done_; }
    const Read &read() const { return read_; }
    Patience::Clock::time_point not_before() const { return not_before_; }

    // Judges the result of such a read: how many bytes it brought, or -errno. Throws IoError
    // if the read cannot be finished.
    Step advance(int64_t result) {
        if (result >= read_.required - done_) [[likely]]
            return Step::finished;
        return advance_slowly(result);
    }

private:
    Step advance_slowly(int64_t result);
    Step try_again(int code);

    Read read_;
    int64_t done_ = 0;  // bytes that have arrived, in whole units of direct reads
    Patience patience_;
    Patience::Clock::time_point not_before_{};
};

// That a read failed: "cannot read 4096 bytes at offset 8192: Input/output error".
IoError read_error(const Read &read, int64_t offset, int64_t length, int code);
// That its file ends at byte `end`, or before.
IoError truncation_error(const Read &read, int64_t end);

}  // namespace gnnstore
