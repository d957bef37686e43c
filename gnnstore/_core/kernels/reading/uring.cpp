#include "kernels/reading/uring.h"

#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "kernels/base/errors.h"
#include "kernels/base/system.h"

// Headers older than the kernel that runs.
#ifndef IORING_SETUP_COOP_TASKRUN
#define IORING_SETUP_COOP_TASKRUN (1U << 8)  // Linux 5.19
#define IORING_SETUP_TASKRUN_FLAG (1U << 9)
#endif
#ifndef IORING_SQ_TASKRUN
#define IORING_SQ_TASKRUN (1U << 2)
#endif
#ifndef IORING_FEAT_SINGLE_MMAP
#define IORING_FEAT_SINGLE_MMAP (1U << 0)  // Linux 5.4
#endif

namespace gnnstore {
namespace {

IoError ring_error(const char *call, int code) {
    return IoError(code, std::string(call) + ": " + std::strerror(code), {});
}

}  // namespace

Ring::Ring(unsigned num_entries) {
    try {
        set_up(num_entries);
        map();
    } catch (...) {
        close_all();
        throw;
    }
}

Ring::~Ring() { close_all(); }

void Ring::set_up(unsigned num_entries) {
    // COOP_TASKRUN: results wait for the thread's next system call instead of interrupting
    // it. Not SINGLE_ISSUER, and what builds on it: an engine is lent to one thread after
    // the other. Kernels before 5.19 refuse flags that they do not know.
    for (const unsigned flags : {IORING_SETUP_COOP_TASKRUN | IORING_SETUP_TASKRUN_FLAG, 0U}) {
        params_ = {};
        params_.flags = flags;
        descriptor_ = sys::io_uring_setup(num_entries, &params_);
        if (descriptor_ >= 0) return;
        if (errno != EINVAL) break;
    }
    throw ring_error("io_uring_setup", errno);
}

Ring::Map Ring::map_range(size_t num_bytes, int64_t offset) {
    void *place = sys::mmap(nullptr, num_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE,
                            descriptor_, offset);
    if (place == MAP_FAILED) throw ring_error("mmap of the rings of io_uring", errno);
    // A child must not use its parent's rings, and keeping them would keep them alive.
    (void)::madvise(place, num_bytes, MADV_DONTFORK);
    return {place, num_bytes};
}

void Ring::map() {
    const auto &sq = params_.sq_off;
    const auto &cq = params_.cq_off;
    size_t submission_bytes = sq.array + params_.sq_entries * sizeof(unsigned);
    const size_t completion_bytes = cq.cqes + params_.cq_entries * sizeof(io_uring_cqe);
    const bool is_single = (params_.features & IORING_FEAT_SINGLE_MMAP) != 0;
    if (is_single) submission_bytes = std::max(submission_bytes, completion_bytes);
    rings_ = map_range(submission_bytes, IORING_OFF_SQ_RING);
    if (!is_single) completion_ring_ = map_range(completion_bytes, IORING_OFF_CQ_RING);
    entries_ = map_range(params_.sq_entries * sizeof(io_uring_sqe), IORING_OFF_SQES);

    auto *submission = static_cast<uint8_t *>(rings_.data);
    auto *completion = is_single ? submission : static_cast<uint8_t *>(completion_ring_.data);
    const auto number = [](uint8_t *ring, uint32_t offset) {
        return reinterpret_cast<unsigned *>(ring + offset);
    };
    submission_head_ = number(submission, sq.head);
    submission_tail_ = number(submission, sq.tail);
    submission_flags_ = number(submission, sq.flags);
    submission_mask_ = *number(submission, sq.ring_mask);
    submissions_ = static_cast<io_uring_sqe *>(entries_.data);
    tail_ = *submission_tail_;
    // The ring holds indices of entries, so that a program may submit them in another order
    // than it fills them in. This one does not.
    unsigned *order = number(submission, sq.array);
    for (unsigned i = 0; i < params_.sq_entries; ++i) order[i] = i;
    completion_head_ = number(completion, cq.head);
    completion_tail_ = number(completion, cq.tail);
    completion_mask_ = *number(completion, cq.ring_mask);
    completions_ = reinterpret_cast<io_uring_cqe *>(completion + cq.cqes);
}

void Ring::close_all() {
    for (const Map &map : {rings_, completion_ring_, entries_})
        if (map.data != nullptr) ::munmap(map.data, map.num_bytes);
    if (descriptor_ >= 0) ::close(descriptor_);
}

int Ring::register_buffer(void *data, size_t num_bytes) {
    const iovec buffer{data, num_bytes};
    return sys::io_uring_register(descriptor_, IORING_REGISTER_BUFFERS, &buffer, 1) == 0 ? 0
                                                                                         : errno;
}

void Ring::unregister_buffers() {
    (void)sys::io_uring_register(descriptor_, IORING_UNREGISTER_BUFFERS, nullptr, 0);
}

io_uring_sqe &Ring::next_submission() {
    io_uring_sqe &entry = submissions_[tail_++ & submission_mask_];
    std::memset(&entry, 0, sizeof entry);
    return entry;
}

int Ring::enter(unsigned min_completions) {
    // Released: the kernel sees the tail after the entries.
    __atomic_store_n(submission_tail_, tail_, __ATOMIC_RELEASE);
    // GETEVENTS also where nothing is waited for: results that wait for a call come with it.
    const int taken = sys::io_uring_enter(descriptor_, num_unsubmitted(), min_completions,
                                          IORING_ENTER_GETEVENTS);
    return taken < 0 ? errno : 0;
}

bool Ring::has_work_to_run() const {
    return (__atomic_load_n(submission_flags_, __ATOMIC_RELAXED) & IORING_SQ_TASKRUN) != 0;
}

}  // namespace gnnstore
