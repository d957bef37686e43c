// Files opened for reading, and the renames that commit a store.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace gnnstore {

struct RegularFile {
    int descriptor;  // the caller closes it
    int64_t num_bytes;
};

// Opens an existing regular file, and throws IoError for anything else in its place: FIFOs,
// devices and sockets, without waiting for them, and symbolic links. flags: what to open it for.
// doing: the beginning of a message, such as "cannot open for reading".
// What Python opens goes through gnnstore/formats/base/files.py.
RegularFile open_regular(const std::string &path, int flags, const char *doing);

// A regular file open for reading; closed with the object. Every failure is an IoError that
// names the path and, for a read, the byte offset.
class File {
public:
    // flags: added to open_regular's, such as O_DIRECT.
    explicit File(std::string path, int flags = 0);
    ~File();
    File(const File &) = delete;
    File &operator=(const File &) = delete;

    int descriptor() const { return file_.descriptor; }
    const std::string &path() const { return path_; }
    int64_t size() const { return file_.num_bytes; }  // when it was opened

    // Throws EIO if the file has fewer bytes than this.
    void check_size(int64_t body_bytes) const;
    // Reads num_bytes at offset, or throws: a file that ends early is EIO, never zeros.
    void read_exactly(uint8_t *out, int64_t num_bytes, int64_t offset) const;
    void advise_sequential() const;

private:
    std::string path_;
    RegularFile file_;
};

// Checks the files of an array, and how many bytes of each belong to it.
void check_bodies(const std::vector<std::string> &paths, const std::vector<int64_t> &body_bytes);

// Renames source to target unless target exists (EEXIST).
void rename_noreplace(const std::string &source, const std::string &target);

// Exchanges two existing paths atomically.
void rename_exchange(const std::string &a, const std::string &b);

}  // namespace gnnstore
