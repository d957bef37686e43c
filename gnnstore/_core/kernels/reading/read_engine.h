// Reads in flight: the one interface over io_uring, a pool of threads that pread, and a pool
// of threads that copy from a mapping. An engine belongs to one thread at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "kernels/files/open_file.h"

namespace gnnstore {

enum class EngineKind { io_uring, pread, mmap };

EngineKind parse_engine_kind(const std::string &name);  // throws std::invalid_argument

// Bytes [offset, offset + length) of a file, to out. offset, length and out are aligned as
// the file asks. The file may end early as long as it holds the first `required` bytes.
struct Read {
    const OpenFile *file = nullptr;
    int64_t offset = 0;
    int64_t length = 0;    // at most 1 GiB
    int64_t required = 0;  // 1 to length
    uint8_t *out = nullptr;
    uint64_t tag = 0;  // the caller's: comes back when the read is finished
};

// Memory that reads will go to, where it is known beforehand: an engine may register it
// with the kernel, which then need not pin its pages for every read.
struct Staging {
    uint8_t *data = nullptr;
    int64_t num_bytes = 0;
};

class ReadEngine {
public:
    // Waits for what is in flight.
    virtual ~ReadEngine() = default;

    // The most reads that may be in flight.
    virtual int queue_depth() const = 0;
    // Reads that were submitted and have not been returned by finished().
    virtual int num_in_flight() const = 0;

    // Starts reads; there must be room for all of them. May hold them back until the next
    // call of finished(), so that many start with one system call.
    virtual void submit(std::span<const Read> reads) = 0;

    // Writes the tags of finished reads to `tags` (which has room for queue_depth()) and
    // returns how many. Waits until at least min(min_reads, num_in_flight()) are finished;
    // 0 only polls. Short reads are continued, EINTR and EAGAIN retried. A read that failed,
    // or met the end of the file, is thrown as an IoError naming path, offset and length;
    // the others remain in flight, and the caller calls drain() before it frees any buffer.
    virtual int finished(uint64_t *tags, int min_reads) = 0;

    // Waits until nothing is in flight, and forgets the results.
    virtual void drain() noexcept = 0;

    // How the engine works here, in a few words: "io_uring, 128 deep, registered buffers".
    virtual std::string describe() const = 0;
};

struct EngineOptions {
    EngineKind kind = EngineKind::io_uring;
    int queue_depth = 128;  // 1 to 4096
    int num_threads = 32;   // of pread and mmap; at most queue_depth are started
    Staging staging;
};

// Throws IoError with the call that failed and its errno: "io_uring_setup: Operation not
// permitted" (the path of the error is empty).
std::unique_ptr<ReadEngine> make_engine(const EngineOptions &options);

}  // namespace gnnstore
