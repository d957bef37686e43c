#include "kernels/files/mapping.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <limits>

#include "kernels/base/errors.h"
#include "kernels/base/system.h"
#include "kernels/files/files.h"

namespace gnnstore {
namespace {

int64_t sum_bodies(const std::vector<std::string> &paths, const std::vector<int64_t> &body_bytes,
                   int64_t page_bytes) {
    check_bodies(paths, body_bytes);
    int64_t total = 0;
    for (size_t i = 0; i < paths.size(); ++i) {
        if (total % page_bytes != 0 && body_bytes[i] > 0)
            throw invalid("cannot map ", paths[i], " behind the files before it: their bodies add "
                          "up to ", total, " bytes, not a multiple of the system's page of ",
                          page_bytes, " bytes; write the array with larger pages");
        total = checked_add(total, body_bytes[i], "the sum of body_bytes");
    }
    return total;
}

void map_body(const File &file, uint8_t *place, int64_t body_bytes) {
    file.check_size(body_bytes);
    if (body_bytes == 0) return;
    if (sys::mmap(place, static_cast<size_t>(body_bytes), PROT_READ, MAP_SHARED | MAP_FIXED,
                  file.descriptor(), 0) == MAP_FAILED) {
        const int code = errno;
        throw IoError(code, std::string("cannot map: ") + std::strerror(code), file.path());
    }
}

}  // namespace

Mapping::Mapping(const std::vector<std::string> &paths, const std::vector<int64_t> &body_bytes,
                 Advice advice) {
    const int64_t page_bytes = ::sysconf(_SC_PAGESIZE);
    const int64_t total = sum_bodies(paths, body_bytes, page_bytes);
    if (total > std::numeric_limits<int64_t>::max() - page_bytes)
        throw invalid("the sum of body_bytes is too large");
    const auto reserved = static_cast<size_t>((total + page_bytes - 1) / page_bytes * page_bytes);
    if (reserved > 0) {
        void *range = sys::mmap(nullptr, reserved, PROT_NONE,
                                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (range == MAP_FAILED) {
            const int code = errno;
            throw IoError(code, text_of("cannot reserve ", reserved, " bytes of address space: ",
                                        std::strerror(code)), paths.front());
        }
        data_ = static_cast<uint8_t *>(range);
    }
    try {
        int64_t offset = 0;
        for (size_t i = 0; i < paths.size(); ++i) {
            const File file(paths[i]);
            map_body(file, data_ + offset, body_bytes[i]);
            offset += body_bytes[i];
        }
    } catch (...) {
        if (data_ != nullptr) ::munmap(data_, reserved);
        throw;
    }
    num_bytes_ = total;
    reserved_bytes_ = reserved;
    if (reserved > 0 && advice != Advice::normal)
        (void)sys::madvise(data_, reserved,
                           advice == Advice::random ? MADV_RANDOM : MADV_SEQUENTIAL);
}

Mapping::~Mapping() {
    if (data_ != nullptr) ::munmap(data_, reserved_bytes_);
}

}  // namespace gnnstore
