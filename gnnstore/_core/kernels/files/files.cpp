#include "kernels/files/files.h"

#include <fcntl.h>
#include <linux/fs.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string_view>
#include <utility>

#include "kernels/base/errors.h"
#include "kernels/base/system.h"

namespace gnnstore {

namespace {

const char *kind_of(mode_t mode) {
    if (S_ISDIR(mode)) return "a directory";
    if (S_ISLNK(mode)) return "a symbolic link";
    if (S_ISFIFO(mode)) return "a FIFO";
    if (S_ISSOCK(mode)) return "a socket";
    return "a device";
}

[[noreturn]] void refuse(mode_t mode, const std::string &path) {
    const std::string wanted = S_ISDIR(mode) ? "expected a file, found "
                                             : "expected a regular file, found ";
    throw IoError(S_ISDIR(mode) ? EISDIR : EINVAL, wanted + kind_of(mode), path);
}

// Whether a path names an open file of this process, which /proc shows as a link: a file without
// a name is opened again so.
bool is_own_descriptor(const std::string &path) {
    constexpr std::string_view own = "/proc/self/fd/";
    return path.starts_with(own) &&
           path.find_first_not_of("0123456789", own.size()) == std::string::npos;
}

}  // namespace

RegularFile open_regular(const std::string &path, int flags, const char *doing) {
    // A FIFO would wait for its other end, and a terminal could become the process's own.
    const int cautious =
        O_CLOEXEC | O_NONBLOCK | O_NOCTTY | (is_own_descriptor(path) ? 0 : O_NOFOLLOW);
    int descriptor;
    do descriptor = sys::open(path.c_str(), flags | cautious, 0);
    while (descriptor < 0 && errno == EINTR);
    struct stat status;
    if (descriptor < 0) {
        const int code = errno;
        // A link (ELOOP), and a socket or a FIFO without a reader (ENXIO).
        if ((code == ELOOP || code == ENXIO) && ::lstat(path.c_str(), &status) == 0 &&
            !S_ISREG(status.st_mode))
            refuse(status.st_mode, path);
        throw IoError(code, std::string(doing) + ": " + std::strerror(code), path);
    }
    try {
        if (sys::fstat(descriptor, &status) != 0) {
            const int code = errno;
            throw IoError(code, std::string("cannot get the size: ") + std::strerror(code), path);
        }
        if (!S_ISREG(status.st_mode)) refuse(status.st_mode, path);
        // io_uring takes O_NONBLOCK at its word, and gives EAGAIN for what is not in memory.
        const int set = ::fcntl(descriptor, F_GETFL);
        if (set < 0 || ::fcntl(descriptor, F_SETFL, set & ~O_NONBLOCK) != 0) {
            const int code = errno;
            throw IoError(code, std::string(doing) + ": " + std::strerror(code), path);
        }
    } catch (...) {
        ::close(descriptor);
        throw;
    }
    return {descriptor, status.st_size};
}

File::File(std::string path, int flags)
    : path_(std::move(path)),
      file_(open_regular(path_, O_RDONLY | flags, "cannot open for reading")) {}

File::~File() { ::close(file_.descriptor); }

void File::check_size(int64_t body_bytes) const {
    if (size() < body_bytes)
        throw IoError(EIO, text_of("the file holds ", size(), " bytes, but its body should have ",
                                   body_bytes, "; it is truncated"), path_);
}

void File::read_exactly(uint8_t *out, int64_t num_bytes, int64_t offset) const {
    // Linux transfers at most 2 GiB less a page per call.
    constexpr int64_t max_read_bytes = 1 << 30;
    for (int64_t done = 0; done < num_bytes;) {
        const auto wanted = static_cast<size_t>(std::min(max_read_bytes, num_bytes - done));
        const ssize_t got = sys::pread(file_.descriptor, out + done, wanted, offset + done);
        if (got > 0) {
            done += got;
        } else if (got == 0) {
            throw IoError(EIO, text_of("the file ends at byte ", offset + done, ", but bytes ",
                                       offset, " to ", offset + num_bytes, " were asked for; it is "
                                       "truncated"), path_);
        } else if (errno != EINTR) {
            // EAGAIN too: a regular file does not give it unless asked to, and whatever
            // does give it would be asked again and again without a pause.
            const int code = errno;
            throw IoError(code, text_of("cannot read ", num_bytes - done, " bytes at offset ",
                                        offset + done, ": ", std::strerror(code)), path_);
        }
    }
}

void File::advise_sequential() const {
    // Only a hint: a file system that ignores it is as correct.
    (void)sys::fadvise(file_.descriptor, 0, 0, POSIX_FADV_SEQUENTIAL);
}

namespace {

void rename_with_flags(const std::string &source, const std::string &target, unsigned flags) {
    if (sys::renameat2(source.c_str(), target.c_str(), flags) != 0) {
        const int code = errno;
        throw IoError(code, std::string("cannot rename: ") + std::strerror(code), source, target);
    }
}

}  // namespace

void check_bodies(const std::vector<std::string> &paths, const std::vector<int64_t> &body_bytes) {
    require(paths.size() == body_bytes.size(), "paths and body_bytes must have the same length, "
            "got ", paths.size(), " and ", body_bytes.size());
    for (size_t i = 0; i < body_bytes.size(); ++i)
        if (body_bytes[i] < 0)
            throw invalid("body_bytes[", i, "] must not be negative, got ", body_bytes[i]);
}

void rename_noreplace(const std::string &source, const std::string &target) {
    rename_with_flags(source, target, RENAME_NOREPLACE);
}

void rename_exchange(const std::string &a, const std::string &b) {
    rename_with_flags(a, b, RENAME_EXCHANGE);
}

}  // namespace gnnstore
