// The engines behind make_engine, and what they have in common.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "kernels/reading/read_engine.h"

namespace gnnstore {

std::unique_ptr<ReadEngine> make_uring_engine(const EngineOptions &options);
std::unique_ptr<ReadEngine> make_thread_engine(const EngineOptions &options);  // pread, mmap

// Throws std::invalid_argument if there is no room for so many more reads, or one of them
// makes no sense.
void check_reads(std::span<const Read> reads, int num_in_flight, int queue_depth);

// Keeps memory that the kernel reads into out of the child when the process forks. On older
// kernels the two would share its pages until one of them writes there; if that is the
// parent, it gets copies, and reads in flight arrive in the child. Newer ones copy pages that
// are registered at once, which makes a fork slow.
class NotForked {
public:
    explicit NotForked(const Staging &staging);
    ~NotForked();
    NotForked(const NotForked &) = delete;
    NotForked &operator=(const NotForked &) = delete;

private:
    void *begin_ = nullptr;
    size_t num_bytes_ = 0;
};

}  // namespace gnnstore
