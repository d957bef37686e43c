#include "kernels/reading/read_engine.h"

#include <sys/mman.h>
#include <unistd.h>

#include <string>

#include "kernels/base/errors.h"
#include "kernels/base/system.h"
#include "kernels/reading/engines.h"

namespace gnnstore {
namespace {

constexpr int max_queue_depth = 4096;
constexpr int64_t max_read_bytes = int64_t{1} << 30;

}  // namespace

EngineKind parse_engine_kind(const std::string &name) {
    if (name == "io_uring") return EngineKind::io_uring;
    if (name == "pread") return EngineKind::pread;
    if (name == "mmap") return EngineKind::mmap;
    throw invalid("engine must be 'io_uring', 'pread' or 'mmap', got '", name, "'");
}

std::unique_ptr<ReadEngine> make_engine(const EngineOptions &options) {
    require(options.queue_depth >= 1 && options.queue_depth <= max_queue_depth, "queue_depth must "
            "be between 1 and ", max_queue_depth, ", got ", options.queue_depth);
    require(options.num_threads >= 1, "num_threads must be at least 1, got ", options.num_threads);
    return options.kind == EngineKind::io_uring ? make_uring_engine(options)
                                                : make_thread_engine(options);
}

void check_reads(std::span<const Read> reads, int num_in_flight, int queue_depth) {
    if (reads.size() > static_cast<size_t>(queue_depth - num_in_flight))
        throw invalid("there is no room for ", reads.size(), " more reads: ", num_in_flight, " of ",
                      queue_depth, " are in flight");
    for (const Read &read : reads)
        if (read.offset < 0 || read.required < 1 || read.required > read.length ||
            read.length > max_read_bytes)
            throw invalid("a read must be of 1 byte to 1 GiB, all or some of them required, got ",
                          read.required, " of ", read.length, " bytes at offset ", read.offset);
}

NotForked::NotForked(const Staging &staging) {
    // Whole pages only: what else lies on the first and the last belongs to others.
    const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
    const auto begin = reinterpret_cast<uintptr_t>(staging.data);
    const uintptr_t end = begin + static_cast<uintptr_t>(staging.num_bytes);
    const uintptr_t first = (begin + page - 1) / page * page, last = end / page * page;
    if (staging.data == nullptr || first >= last) return;
    auto *place = reinterpret_cast<void *>(first);
    if (sys::madvise(place, last - first, MADV_DONTFORK) != 0) return;
    begin_ = place;
    num_bytes_ = last - first;
}

NotForked::~NotForked() {
    // No fault point: memory that stays behind like this is a crash in some later child.
    if (begin_ != nullptr) (void)::madvise(begin_, num_bytes_, MADV_DOFORK);
}

}  // namespace gnnstore
