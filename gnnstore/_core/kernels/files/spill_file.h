// A temporary file of a run: written and read by places, checked by checksums, and removed when
// it is not needed any more. Traces and plans of superbatches lie in such files, so that
// planning takes memory by the slot and not by the access.
//
// Through the page cache: what is read soon after it was written, as here, is then mostly read
// from memory, and memory that somebody needs more is given up.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <shared_mutex>
#include <string>

#include "kernels/files/files.h"

namespace gnnstore {

class SpillFile {
public:
    // Makes the file; it must not exist. Every failure is an IoError that names the path.
    explicit SpillFile(std::string path);
    ~SpillFile() { close(); }
    SpillFile(const SpillFile &) = delete;
    SpillFile &operator=(const SpillFile &) = delete;

    const std::string &path() const { return path_; }
    // Behind the last byte that was written, or set aside.
    int64_t size() const { return end_.load(std::memory_order_relaxed); }

    // Closes and removes the file, the latter in the process that made it. Waits for reads
    // and writes that run; later ones throw std::invalid_argument. Idempotent.
    void close() noexcept;

    // The following are safe to call from many threads.
    // Sets room aside, where the file system can: a full disk is then found out here.
    void reserve(int64_t num_bytes);
    // Writes behind all that was appended so far, and returns where that is.
    int64_t append(const void *data, int64_t num_bytes);
    void write(const void *data, int64_t num_bytes, int64_t offset);
    // Reads what a batch wrote, and had this checksum then; where it has not, the code of the
    // IoError is EBADMSG: "batch 5 is not what was written: ...".
    void read(void *out, int64_t num_bytes, int64_t offset, uint32_t crc, int64_t batch) const;
    // The two halves of read, for a batch that is read in pieces: bytes that are not checked yet,
    // and the check that throws unless the checksum of all of them is as it was.
    void read_unchecked(void *out, int64_t num_bytes, int64_t offset) const;
    void check(uint32_t found, uint32_t crc, int64_t num_bytes, int64_t offset,
               int64_t batch) const;
    // A crc32c of the batch's number too: what was written for another one is found out.
    static uint32_t checksum(const void *data, int64_t num_bytes, int64_t batch);
    // Says that these bytes are read soon.
    void will_need(int64_t num_bytes, int64_t offset) const;

private:
    std::shared_lock<std::shared_mutex> open_lock() const;
    void write_all(const uint8_t *data, int64_t num_bytes, int64_t offset) const;

    const std::string path_;
    const pid_t made_by_;
    int descriptor_ = -1;           // for writing
    std::unique_ptr<File> reader_;  // null: closed
    std::atomic<int64_t> end_{0};
    mutable std::shared_mutex mutex_;  // shared by all calls, alone while it is closed
};

}  // namespace gnnstore
