#include "kernels/reading/read_progress.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <string>

#include "kernels/base/system.h"

namespace gnnstore {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr seconds all_pauses{2};
constexpr microseconds first_pause{100};
constexpr milliseconds longest_pause{50};

// The size of a file; huge if the system does not tell.
int64_t size_of(const OpenFile &file) {
    struct stat status;
    if (sys::fstat(file.descriptor(), &status) != 0) return std::numeric_limits<int64_t>::max();
    return status.st_size;
}

}  // namespace

bool Patience::is_left() {
    const Clock::time_point now = Clock::now();
    if (!has_begun_) {
        has_begun_ = true;
        end_ = now + all_pauses;
        pause_ = first_pause;
    }
    return now < end_;
}

Patience::Clock::duration Patience::next_pause() {
    const Clock::duration pause = pause_;
    pause_ = std::min<Clock::duration>(2 * pause_, longest_pause);
    return pause;
}

ReadProgress::Step ReadProgress::try_again(int code) {
    if (!patience_.is_left()) throw read_error(read_, offset(), length(), code);
    if (code == EINTR) return Step::again;
    not_before_ = Patience::Clock::now() + patience_.next_pause();
    return Step::later;
}

ReadProgress::Step ReadProgress::advance_slowly(int64_t result) {
    if (result < 0) {
        const int code = static_cast<int>(-result);
        if (code == EINTR || code == EAGAIN) return try_again(code);
        throw read_error(read_, offset(), length(), code);
    }
    if (result == 0) throw truncation_error(read_, offset());
    // A direct read can only go on at a whole unit; what lies behind it is read again.
    const OpenFile &file = *read_.file;
    const int64_t unit =
        file.is_direct() ? std::max(file.offset_alignment(), file.memory_alignment()) : 1;
    const int64_t end = done_ + result, whole = end / unit * unit;
    if (whole > done_) {
        done_ = whole;
        patience_.reset();
        return Step::again;
    }
    // Less than a unit: as before the end of a file; its size decides whether it is there.
    if (size_of(file) <= read_.offset + end) throw truncation_error(read_, read_.offset + end);
    return try_again(EINTR);
}

IoError read_error(const Read &read, int64_t offset, int64_t length, int code) {
    return IoError(code, text_of("cannot read ", length, " bytes at offset ", offset, ": ",
                                 std::strerror(code)), read.file->path());
}

IoError truncation_error(const Read &read, int64_t end) {
    return IoError(EIO, text_of("the file ends at byte ", std::min(end, size_of(*read.file)), ", "
                                "but bytes ", read.offset, " to ", read.offset + read.required, " "
                                "were asked for; it is truncated"), read.file->path());
}

}  // namespace gnnstore
