#include "kernels/files/open_file.h"

#include <fcntl.h>
#include <sys/mman.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>
#include <utility>

#include "kernels/base/errors.h"
#include "kernels/base/system.h"

namespace gnnstore {
namespace {

constexpr int max_tries = 20;

}  // namespace

OpenFile::OpenFile(std::string path, int64_t min_bytes, bool want_direct)
    : mapped_bytes_(min_bytes) {
    require(min_bytes >= 0, "min_bytes must not be negative, got ", min_bytes);
    if (want_direct) open_direct(path);
    if (!is_direct_) {
        file_ = std::make_unique<File>(std::move(path));
        // Only a hint, as in File::advise_sequential. Without it the system reads up to
        // 128 KiB for a row.
        (void)sys::fadvise(file_->descriptor(), 0, 0, POSIX_FADV_RANDOM);
    }
    file_->check_size(min_bytes);
}

OpenFile::~OpenFile() {
    if (const uint8_t *place = mapped_.load(std::memory_order_relaxed); place != nullptr)
        ::munmap(const_cast<uint8_t *>(place), static_cast<size_t>(mapped_bytes_));
}

void OpenFile::open_direct(const std::string &path) {
    std::unique_ptr<File> file;
    try {
        file = std::make_unique<File>(path, O_DIRECT);
    } catch (const IoError &error) {
        if (error.code != EINVAL && error.code != EOPNOTSUPP) throw;
        buffered_because_ = std::string("the file system refuses to open with O_DIRECT: ") +
                            std::strerror(error.code);
        return;
    }
    StatxFacts facts{};
    // Linux before 6.1 and some file systems say nothing. 4096 then: no common disk has
    // larger sectors.
    constexpr int64_t usual_alignment = 4096;
    offset_alignment_ = memory_alignment_ = usual_alignment;
    if (sys::statx(file->descriptor(), statx_dioalign, &facts) == 0 &&
        (facts.mask & statx_dioalign) != 0) {
        if (facts.dio_offset_alignment == 0 || facts.dio_memory_alignment == 0) {
            buffered_because_ =
                "the file system offers no direct reads of this file (STATX_DIOALIGN says 0)";
            offset_alignment_ = 512;
            memory_alignment_ = 1;
            return;
        }
        offset_alignment_ = facts.dio_offset_alignment;
        memory_alignment_ = facts.dio_memory_alignment;
    }
    file_ = std::move(file);
    is_direct_ = true;
}

const uint8_t *OpenFile::mapped() const {
    if (const uint8_t *place = mapped_.load(std::memory_order_acquire); place != nullptr)
        return place;
    if (mapped_bytes_ == 0) return nullptr;
    const auto num_bytes = static_cast<size_t>(mapped_bytes_);
    void *place = MAP_FAILED;
    for (int tries = 0; place == MAP_FAILED; ++tries) {
        place = sys::mmap(nullptr, num_bytes, PROT_READ, MAP_SHARED, descriptor(), 0);
        if (place != MAP_FAILED) break;
        const int code = errno;
        if (const uint8_t *earlier = mapped_.load(std::memory_order_acquire); earlier != nullptr)
            return earlier;
        // Others may be mapping it, where there is room for one mapping.
        if (tries == max_tries)
            throw IoError(code, std::string("cannot map: ") + std::strerror(code), path());
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    // Only a hint: without it the system reads tens of pages around each page touched.
    (void)sys::madvise(place, num_bytes, MADV_RANDOM);
    const uint8_t *earlier = nullptr;
    if (mapped_.compare_exchange_strong(earlier, static_cast<const uint8_t *>(place)))
        return static_cast<const uint8_t *>(place);
    ::munmap(place, num_bytes);  // another thread was first
    return earlier;
}

}  // namespace gnnstore
