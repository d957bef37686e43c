#include "kernels/files/spill_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <utility>

#include "kernels/base/errors.h"
#include "kernels/base/system.h"
#include "kernels/files/crc32c.h"

namespace gnnstore {
namespace {

std::string bytes_at(int64_t num_bytes, int64_t offset) {
    return std::to_string(num_bytes) + " bytes at offset " + std::to_string(offset);
}

std::string hex(uint32_t value) {
    char text[9];
    std::snprintf(text, sizeof text, "%08x", value);
    return text;
}

}  // namespace

SpillFile::SpillFile(std::string path) : path_(std::move(path)), made_by_(::getpid()) {
    const int flags = O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC;
    do descriptor_ = sys::open(path_.c_str(), flags, 0600);
    while (descriptor_ < 0 && errno == EINTR);
    if (descriptor_ < 0) {
        const int code = errno;
        throw IoError(code, std::string("cannot make a file: ") + std::strerror(code), path_);
    }
    try {
        reader_ = std::make_unique<File>(path_);
    } catch (...) {
        ::close(descriptor_);
        (void)::unlink(path_.c_str());
        throw;
    }
}

void SpillFile::close() noexcept {
    std::unique_lock alone(mutex_, std::defer_lock);
    // A thread that was reading when this process was forked holds it for ever here, and the file
    // stays open until the process ends.
    if (::getpid() == made_by_)
        alone.lock();
    else if (!alone.try_lock())
        return;
    if (reader_ == nullptr) return;
    reader_.reset();
    ::close(descriptor_);
    // A file that cannot be removed now goes with the directory of the run.
    if (::getpid() == made_by_) (void)::unlink(path_.c_str());
}

std::shared_lock<std::shared_mutex> SpillFile::open_lock() const {
    std::shared_lock lock(mutex_);
    if (reader_ == nullptr) throw invalid(path_, " is closed");
    return lock;
}

void SpillFile::reserve(int64_t num_bytes) {
    const auto lock = open_lock();
    if (num_bytes <= end_) return;
    int result;
    do result = sys::fallocate(descriptor_, num_bytes);
    while (result != 0 && errno == EINTR);
    // Without it the file grows write by write, which is as right.
    if (const int code = errno; result != 0 && code != EOPNOTSUPP && code != ENOSYS)
        throw IoError(code, text_of("cannot set ", num_bytes, " bytes aside: ",
                                    std::strerror(code)), path_);
    end_ = num_bytes;
}

int64_t SpillFile::append(const void *data, int64_t num_bytes) {
    const auto lock = open_lock();
    const int64_t begin = end_.fetch_add(num_bytes);
    write_all(static_cast<const uint8_t *>(data), num_bytes, begin);
    return begin;
}

void SpillFile::write(const void *data, int64_t num_bytes, int64_t offset) {
    const auto lock = open_lock();
    write_all(static_cast<const uint8_t *>(data), num_bytes, offset);
    int64_t end = end_;
    while (end < offset + num_bytes && !end_.compare_exchange_weak(end, offset + num_bytes)) {
    }
}

void SpillFile::write_all(const uint8_t *data, int64_t num_bytes, int64_t offset) const {
    constexpr int64_t max_write_bytes = 1 << 30;  // Linux writes at most 2 GiB less a page
    for (int64_t done = 0; done < num_bytes;) {
        const auto wanted = static_cast<size_t>(std::min(max_write_bytes, num_bytes - done));
        const ssize_t put = sys::pwrite(descriptor_, data + done, wanted, offset + done);
        const int code = put < 0 ? errno : EIO;
        if (put > 0) {
            done += put;
        } else if (put == 0 || code != EINTR) {
            throw IoError(code,
                          "cannot write " + bytes_at(num_bytes - done, offset + done) + ": " +
                              (put == 0 ? "the system writes nothing of them"
                                        : std::strerror(code)),
                          path_);
        }
    }
}

void SpillFile::read(void *out, int64_t num_bytes, int64_t offset, uint32_t crc,
                     int64_t batch) const {
    read_unchecked(out, num_bytes, offset);
    check(checksum(out, num_bytes, batch), crc, num_bytes, offset, batch);
}

void SpillFile::read_unchecked(void *out, int64_t num_bytes, int64_t offset) const {
    const auto lock = open_lock();
    reader_->read_exactly(static_cast<uint8_t *>(out), num_bytes, offset);
}

void SpillFile::check(uint32_t found, uint32_t crc, int64_t num_bytes, int64_t offset,
                      int64_t batch) const {
    if (found != crc)
        throw IoError(EBADMSG, text_of("batch ", batch, " is not what was written: ",
                                       bytes_at(num_bytes, offset), " have the crc32c ", hex(found),
                                       ", not ", hex(crc)), path_);
}

uint32_t SpillFile::checksum(const void *data, int64_t num_bytes, int64_t batch) {
    return crc32c(static_cast<const uint8_t *>(data), static_cast<size_t>(num_bytes),
                  static_cast<uint32_t>(batch));
}

void SpillFile::will_need(int64_t num_bytes, int64_t offset) const {
    const auto lock = open_lock();
    // Only a hint. Batches are read from the last to the first, where the system reads nothing
    // ahead on its own.
    (void)sys::fadvise(reader_->descriptor(), offset, num_bytes, POSIX_FADV_WILLNEED);
}

}  // namespace gnnstore
