// Files opened for reading, and the renames that commit a store.
#pragma once

#include <cstdint>
#include <string>

namespace gnnstore {

// A file open for reading; closed with the object. Every failure is an IoError that names
// the path and, for a read, the byte offset.
class File {
public:
    // flags: added to O_RDONLY | O_CLOEXEC, such as O_DIRECT.
    explicit File(std::string path, int flags = 0);
    ~File();
    File(const File &) = delete;
    File &operator=(const File &) = delete;

    int descriptor() const { return descriptor_; }
    const std::string &path() const { return path_; }
    int64_t size() const;

    // Reads num_bytes at offset, or throws: a file that ends early is EIO, never zeros.
    void read_exactly(uint8_t *out, int64_t num_bytes, int64_t offset) const;
    void advise_sequential() const;

private:
    std::string path_;
    int descriptor_;
};

// Renames source to target unless target exists (EEXIST).
void rename_noreplace(const std::string &source, const std::string &target);

// Exchanges two existing paths atomically.
void rename_exchange(const std::string &a, const std::string &b);

}  // namespace gnnstore
