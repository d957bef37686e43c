// A file that packed rows are written to: its room is set aside beforehand, and writes go
// around the page cache, which they would only flush.
#pragma once

#include <cstdint>
#include <string>

namespace gnnstore {

class PackFile {
public:
    // Offsets, lengths and places in memory of writes are multiples of this.
    static constexpr int64_t alignment = 4096;

    // Makes a file of num_bytes, which must not exist; or, if `grows`, makes one that does longer,
    // and leaves its bytes alone. Where the file system can, its room is set aside at once: a disk
    // that is full is found out before anything is written, and threads that write side by side
    // need not wait for each other to make the file longer. Throws IoError; the file may be there
    // then.
    PackFile(std::string path, int64_t num_bytes, bool grows = false);
    ~PackFile();
    PackFile(const PackFile &) = delete;
    PackFile &operator=(const PackFile &) = delete;

    const std::string &path() const { return path_; }
    int64_t num_bytes() const { return num_bytes_; }
    bool is_direct() const { return is_direct_; }

    // Writes all bytes, or throws IoError with path and offset. Short writes are continued,
    // EINTR and EAGAIN retried for 2 s. Thread-safe.
    void write(const uint8_t *data, int64_t num_bytes, int64_t offset) const;

private:
    void set_direct();
    [[noreturn]] void fail(const std::string &doing, int code) const;

    const std::string path_;
    const int64_t num_bytes_;
    int descriptor_ = -1;
    bool is_direct_ = false;
};

}  // namespace gnnstore
