// A file of a store, opened for the engines: around the page cache where the file system
// allows it, and with the alignment that it then asks for.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "kernels/files/files.h"

namespace gnnstore {

class OpenFile {
public:
    // Opens with O_DIRECT if want_direct and the file system takes it, else through the page
    // cache with POSIX_FADV_RANDOM. Throws IoError where the file cannot be opened, and where
    // it is shorter than min_bytes (EIO: "the file holds ... it is truncated"). min_bytes must
    // not be negative.
    OpenFile(std::string path, int64_t min_bytes, bool want_direct);
    ~OpenFile();
    OpenFile(const OpenFile &) = delete;
    OpenFile &operator=(const OpenFile &) = delete;

    int descriptor() const { return file_->descriptor(); }
    const std::string &path() const { return file_->path(); }
    bool is_direct() const { return is_direct_; }
    // Offsets and lengths of reads are multiples of this: from STATX_DIOALIGN, else 4096 for
    // direct reads, and 512 for buffered ones (which need none).
    int64_t offset_alignment() const { return offset_alignment_; }
    // The alignment of the memory that is read to; 1 for buffered reads.
    int64_t memory_alignment() const { return memory_alignment_; }
    // Why reads are buffered although direct ones were wanted; empty if they are direct, and
    // if direct ones were not wanted.
    const std::string &buffered_because() const { return buffered_because_; }

    // The first min_bytes of the file, mapped with MADV_RANDOM at the first call; for the
    // engine "mmap". Thread-safe. Throws IoError. Null if min_bytes is 0.
    const uint8_t *mapped() const;
    int64_t mapped_bytes() const { return mapped_bytes_; }  // = min_bytes

private:
    void open_direct(const std::string &path);

    std::unique_ptr<File> file_;
    bool is_direct_ = false;
    int64_t offset_alignment_ = 512;
    int64_t memory_alignment_ = 1;
    std::string buffered_because_;
    const int64_t mapped_bytes_;
    // Without a lock: a child forked while another thread has it could never map the file.
    mutable std::atomic<const uint8_t *> mapped_{nullptr};
};

}  // namespace gnnstore
