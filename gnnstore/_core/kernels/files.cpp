#include "kernels/files.h"

#include <fcntl.h>
#include <linux/fs.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "kernels/errors.h"
#include "kernels/system.h"

namespace gnnstore {

File::File(std::string path, int flags) : path_(std::move(path)) {
    do descriptor_ = sys::open(path_.c_str(), O_RDONLY | O_CLOEXEC | flags);
    while (descriptor_ < 0 && errno == EINTR);
    if (descriptor_ < 0) {
        const int code = errno;
        throw IoError(code, std::string("cannot open for reading: ") + std::strerror(code), path_);
    }
}

File::~File() { ::close(descriptor_); }

int64_t File::size() const {
    struct stat status;
    if (sys::fstat(descriptor_, &status) != 0) {
        const int code = errno;
        throw IoError(code, std::string("cannot get the size: ") + std::strerror(code), path_);
    }
    if (S_ISDIR(status.st_mode)) throw IoError(EISDIR, "expected a file, found a directory", path_);
    return status.st_size;
}

void File::read_exactly(uint8_t *out, int64_t num_bytes, int64_t offset) const {
    // Linux transfers at most 2 GiB less a page per call.
    constexpr int64_t max_read_bytes = 1 << 30;
    for (int64_t done = 0; done < num_bytes;) {
        const auto wanted = static_cast<size_t>(std::min(max_read_bytes, num_bytes - done));
        const ssize_t got = sys::pread(descriptor_, out + done, wanted, offset + done);
        if (got > 0) {
            done += got;
        } else if (got == 0) {
            throw IoError(EIO,
                          "the file ends at byte " + std::to_string(offset + done) +
                              ", but bytes " + std::to_string(offset) + " to " +
                              std::to_string(offset + num_bytes) +
                              " were asked for; it is truncated",
                          path_);
        } else if (errno != EINTR) {
            // EAGAIN too: a regular file does not give it unless asked to, and whatever
            // does give it would be asked again and again without a pause.
            const int code = errno;
            throw IoError(code,
                          "cannot read " + std::to_string(num_bytes - done) + " bytes at offset " +
                              std::to_string(offset + done) + ": " + std::strerror(code),
                          path_);
        }
    }
}

void File::advise_sequential() const {
    // Only a hint: a file system that ignores it is as correct.
    (void)sys::fadvise(descriptor_, 0, 0, POSIX_FADV_SEQUENTIAL);
}

namespace {

void rename_with_flags(const std::string &source, const std::string &target, unsigned flags) {
    if (sys::renameat2(source.c_str(), target.c_str(), flags) != 0) {
        const int code = errno;
        throw IoError(code, std::string("cannot rename: ") + std::strerror(code), source, target);
    }
}

}  // namespace

void rename_noreplace(const std::string &source, const std::string &target) {
    rename_with_flags(source, target, RENAME_NOREPLACE);
}

void rename_exchange(const std::string &a, const std::string &b) {
    rename_with_flags(a, b, RENAME_EXCHANGE);
}

}  // namespace gnnstore
