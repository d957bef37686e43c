// The buffers that packed rows are gathered in, and the threads that write them away.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "kernels/packing/pack_file.h"
#include "kernels/packing/pack_memory.h"

namespace gnnstore {

// The first failure among threads that work together; the others give up then.
class SharedFailure {
public:
    // Takes the exception that is being handled.
    void set();
    bool has_happened() const;
    void rethrow() const;  // if there is one

private:
    mutable std::mutex mutex_;
    std::exception_ptr first_;
};

// Thrown where a thread gives up because another one has failed.
struct GivenUp {};

class PackBuffers {
public:
    // Throws IoError (EAGAIN) if not a single thread can be started; fewer will do.
    PackBuffers(int64_t num_buffers, int64_t buffer_bytes, int num_threads,
                SharedFailure &failure);
    ~PackBuffers();
    PackBuffers(const PackBuffers &) = delete;
    PackBuffers &operator=(const PackBuffers &) = delete;

    int64_t buffer_bytes() const { return buffer_bytes_; }

    // A buffer to fill; waits for one to be written. Throws GivenUp after a failure.
    uint8_t *take();
    // Hands a buffer over; it is written some time later, and free then.
    void write(uint8_t *buffer, int64_t num_bytes, const PackFile &file, int64_t offset);
    // Waits until all is written, or something has failed.
    void finish();
    // After a failure elsewhere: ends all waits.
    void give_up();

    int64_t num_writes() const { return num_writes_; }
    int64_t bytes_written() const { return bytes_written_; }

private:
    struct Task {
        uint8_t *buffer;
        int64_t num_bytes;
        const PackFile *file;
        int64_t offset;
    };
    void run_writer();

    const int64_t buffer_bytes_;
    PackMemory memory_;
    SharedFailure &failure_;
    std::mutex mutex_;
    std::condition_variable has_task_, has_buffer_;
    std::vector<uint8_t *> free_;
    std::deque<Task> tasks_;
    int64_t num_busy_ = 0;  // threads that write
    bool is_over_ = false, is_given_up_ = false;
    int64_t num_writes_ = 0, bytes_written_ = 0;
    std::vector<std::jthread> threads_;
};

}  // namespace gnnstore
