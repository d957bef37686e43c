#include "kernels/packing/pack_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <thread>
#include <utility>

#include "kernels/base/errors.h"
#include "kernels/base/system.h"
#include "kernels/files/files.h"
#include "kernels/reading/read_progress.h"

namespace gnnstore {

PackFile::PackFile(std::string path, int64_t num_bytes, bool grows)
    : path_(std::move(path)), num_bytes_(num_bytes) {
    if (grows) {
        descriptor_ = open_regular(path_, O_WRONLY, "cannot open the file").descriptor;
    } else {
        // Exclusively, so that it is a new file and nothing else.
        do descriptor_ = sys::open(path_.c_str(), O_WRONLY | O_CLOEXEC | O_CREAT | O_EXCL, 0666);
        while (descriptor_ < 0 && errno == EINTR);
        if (descriptor_ < 0) fail("cannot make a file", errno);
    }
    try {
        int result = 0;
        if (num_bytes > 0) {  // the system refuses to set nothing aside
            do result = sys::fallocate(descriptor_, num_bytes);
            while (result != 0 && errno == EINTR);
            // Without it the file grows write by write, which is as right.
            if (result != 0 && (errno == EOPNOTSUPP || errno == ENOSYS))
                result = ::ftruncate(descriptor_, num_bytes);
        }
        if (result != 0) fail("cannot set " + std::to_string(num_bytes) + " bytes aside", errno);
        set_direct();
    } catch (...) {
        ::close(descriptor_);
        throw;
    }
}

PackFile::~PackFile() { ::close(descriptor_); }

// After the file was made: some file systems make it and then refuse O_DIRECT.
void PackFile::set_direct() {
    StatxFacts facts{};
    if (sys::statx(descriptor_, statx_dioalign, &facts) == 0 &&
        (facts.mask & statx_dioalign) != 0 &&
        (facts.dio_offset_alignment == 0 || alignment % facts.dio_offset_alignment != 0 ||
         facts.dio_memory_alignment == 0 || alignment % facts.dio_memory_alignment != 0))
        return;
    const int flags = ::fcntl(descriptor_, F_GETFL);
    is_direct_ = flags >= 0 && ::fcntl(descriptor_, F_SETFL, flags | O_DIRECT) == 0;
}

void PackFile::fail(const std::string &doing, int code) const {
    throw IoError(code, doing + ": " + std::strerror(code), path_);
}

void PackFile::write(const uint8_t *data, int64_t num_bytes, int64_t offset) const {
    Patience patience;
    for (int64_t done = 0; done < num_bytes;) {
        const ssize_t put = sys::pwrite(descriptor_, data + done,
                                        static_cast<size_t>(num_bytes - done), offset + done);
        const int code = put < 0 ? errno : 0;
        const auto place = [&] {
            return "cannot write " + std::to_string(num_bytes - done) + " bytes at offset " +
                   std::to_string(offset + done);
        };
        if (put < 0 && code != EINTR && code != EAGAIN) fail(place(), code);
        // A direct write can only go on at a whole block; what lies behind it is written again.
        const int64_t end = done + (put < 0 ? 0 : put);
        const int64_t whole = is_direct_ && end < num_bytes ? end / alignment * alignment : end;
        if (whole > done) {
            done = whole;
            patience.reset();
            continue;
        }
        if (!patience.is_left()) {
            if (put < 0) fail(place(), code);
            throw IoError(EIO, place() + ": the system writes nothing of them", path_);
        }
        if (code != EINTR) std::this_thread::sleep_for(patience.next_pause());
    }
}

}  // namespace gnnstore
