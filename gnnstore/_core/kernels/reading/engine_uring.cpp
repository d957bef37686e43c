// Reads by io_uring: one system call hands over many reads and waits for many results.
//
// The engine counts on the kernel for one thing only, that each read it has taken is answered
// by one completion. So drain() needs no cancelling: it waits for as many completions as
// there are reads in the kernel. Should io_uring_enter fail meanwhile, whatever the reason,
// completions arrive all the same, since a thread runs its ring's outstanding work on the way
// back from any system call; so it sleeps a millisecond and looks again. Closing the ring
// would not do: it does not end a read that the disk has begun, nor report its end.
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "kernels/base/errors.h"
#include "kernels/base/system.h"
#include "kernels/reading/engines.h"
#include "kernels/reading/read_progress.h"
#include "kernels/reading/uring.h"

namespace gnnstore {
namespace {

// By number, since older headers do not name them and enumerators cannot be asked for.
constexpr uint8_t operation_read_fixed = 4;  // IORING_OP_READ_FIXED, Linux 5.1
constexpr uint8_t operation_read = 22;       // IORING_OP_READ, Linux 5.6

// The kernel's limit for one registered buffer.
constexpr int64_t max_registered_bytes = int64_t{1} << 30;

class UringEngine final : public ReadEngine {
public:
    explicit UringEngine(const EngineOptions &options)
        : depth_(options.queue_depth),
          staging_(options.staging),
          not_forked_(options.staging),
          ring_(static_cast<unsigned>(options.queue_depth)),
          reads_(static_cast<size_t>(options.queue_depth)) {
        free_.reserve(reads_.size());
        for (size_t i = reads_.size(); i > 0; --i) free_.push_back(static_cast<uint32_t>(i - 1));
        later_.reserve(reads_.size());
        register_staging();
    }

    ~UringEngine() override {
        UringEngine::drain();
        if (is_registered_) ring_.unregister_buffers();
    }

    int queue_depth() const override { return depth_; }
    int num_in_flight() const override { return num_in_flight_; }

    void submit(std::span<const Read> reads) override {
        check_reads(reads, num_in_flight_, depth_);
        for (const Read &read : reads) {
            const uint32_t index = free_.back();
            free_.pop_back();
            reads_[index] = ReadProgress(read);
            ++num_in_flight_;
            prepare(index);
        }
    }

    int finished(uint64_t *tags, int min_reads) override {
        const int wanted = std::min(min_reads, num_in_flight_);
        int num_finished = 0;
        take_completions(tags, num_finished);
        prepare_due();
        // One call at most where enough is there already: it starts what was held back.
        while (num_finished < wanted || ring_.num_unsubmitted() > 0 || ring_.has_work_to_run()) {
            const int missing = std::max(wanted - num_finished, 0);
            const int underway = num_in_flight_ - static_cast<int>(later_.size());
            if (missing > 0 && underway == 0)
                std::this_thread::sleep_until(next_due());
            else
                enter(static_cast<unsigned>(std::min(missing, underway)));
            take_completions(tags, num_finished);
            prepare_due();
            if (missing == 0) break;
        }
        return num_finished;
    }

    void drain() noexcept override {
        // The kernel need not read entries that it has not taken.
        num_in_flight_ -= static_cast<int>(ring_.num_unsubmitted() + later_.size());
        ring_.forget_unsubmitted();
        later_.clear();
        uint64_t index;
        int32_t result;
        for (;;) {
            while (ring_.next_completion(index, result)) --num_in_flight_;
            if (num_in_flight_ == 0) break;
            if (ring_.enter(1) != 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
        }
        free_.clear();
        for (size_t i = reads_.size(); i > 0; --i) free_.push_back(static_cast<uint32_t>(i - 1));
        patience_.reset();
    }

    std::string describe() const override {
        std::string text = "io_uring, " + std::to_string(depth_) + " deep, ";
        if (is_registered_) return text + "registered buffers";
        text += "plain buffers";
        if (register_code_ != 0)
            text += std::string(" (registering them: ") + std::strerror(register_code_) + ")";
        return text;
    }

private:
    // Registered, the pages of staging memory are not looked up and pinned for every read:
    // 0.59 instead of 0.63 us of processor time for 512 bytes out of the page cache. It needs
    // the right to lock so much memory (RLIMIT_MEMLOCK), which many processes lack; reads work
    // without.
    void register_staging() {
        if (staging_.data == nullptr || staging_.num_bytes > max_registered_bytes) return;
        register_code_ =
            ring_.register_buffer(staging_.data, static_cast<size_t>(staging_.num_bytes));
        is_registered_ = register_code_ == 0;
    }

    bool is_staged(const uint8_t *data, int64_t num_bytes) const {
        return is_registered_ && data >= staging_.data &&
               num_bytes <= staging_.num_bytes - (data - staging_.data);
    }

    void prepare(uint32_t index) {
        const ReadProgress &progress = reads_[index];
        io_uring_sqe &entry = ring_.next_submission();
        entry.opcode = is_staged(progress.out(), progress.length()) ? operation_read_fixed
                                                                     : operation_read;
        // Not a registered file: that saved 0.01 us of 0.59, and nothing measurable of the
        // 1.8 us that a direct read takes, for a table of files to be kept up to date.
        entry.fd = progress.read().file->descriptor();
        entry.off = static_cast<uint64_t>(progress.offset());
        entry.addr = reinterpret_cast<uint64_t>(progress.out());
        entry.len = static_cast<uint32_t>(progress.length());
        entry.user_data = index;
    }

    void enter(unsigned min_completions) {
        const unsigned num_before = ring_.num_unsubmitted();
        const int code = ring_.enter(min_completions);
        if (code == 0) {
            patience_.reset();
            return;
        }
        // A signal ended the wait; its handler runs when the call is over. A wait may be as long
        // as the disk takes, but reads that are never taken would be waited for in vain.
        if (code == EINTR && num_before == 0) return;
        if (num_before != ring_.num_unsubmitted()) patience_.reset();
        // EAGAIN: no memory for requests just now. EBUSY: too many results not taken yet.
        if ((code != EINTR && code != EAGAIN && code != EBUSY) || !patience_.is_left())
            throw IoError(code, std::string("io_uring_enter: ") + std::strerror(code), {});
        std::this_thread::sleep_for(patience_.next_pause());
    }

    void take_completions(uint64_t *tags, int &num_finished) {
        uint64_t index;
        int32_t result;
        while (ring_.next_completion(index, result)) {
            ReadProgress &progress = reads_[index];
            ReadProgress::Step step;
            try {
                step = progress.advance(sys::io_uring_read(result, progress.out()));
            } catch (...) {
                release(static_cast<uint32_t>(index));
                throw;
            }
            switch (step) {
                case ReadProgress::Step::finished:
                    tags[num_finished++] = progress.read().tag;
                    release(static_cast<uint32_t>(index));
                    break;
                case ReadProgress::Step::again: prepare(static_cast<uint32_t>(index)); break;
                case ReadProgress::Step::later: later_.push_back(static_cast<uint32_t>(index));
            }
        }
    }

    void release(uint32_t index) {
        free_.push_back(index);
        --num_in_flight_;
    }

    // Tries those again that have waited long enough.
    void prepare_due() {
        if (later_.empty()) [[likely]]
            return;
        const auto now = Patience::Clock::now();
        const auto is_due = [&](uint32_t index) { return reads_[index].not_before() <= now; };
        const auto due = std::partition(later_.begin(), later_.end(),
                                        [&](uint32_t index) { return !is_due(index); });
        std::for_each(due, later_.end(), [&](uint32_t index) { prepare(index); });
        later_.erase(due, later_.end());
    }

    Patience::Clock::time_point next_due() const {
        auto first = Patience::Clock::time_point::max();
        for (const uint32_t index : later_) first = std::min(first, reads_[index].not_before());
        return first;
    }

    const int depth_;
    const Staging staging_;
    const NotForked not_forked_;
    Ring ring_;
    std::vector<ReadProgress> reads_;  // in flight; a completion names its place
    std::vector<uint32_t> free_;       // places in reads_
    std::vector<uint32_t> later_;      // places of reads that are to be tried again
    int num_in_flight_ = 0;
    Patience patience_;  // with io_uring_enter
    bool is_registered_ = false;
    int register_code_ = 0;  // why not
};

}  // namespace

std::unique_ptr<ReadEngine> make_uring_engine(const EngineOptions &options) {
    return std::make_unique<UringEngine>(options);
}

}  // namespace gnnstore
