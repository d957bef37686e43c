#include "kernels/packing/pack_memory.h"

#include <sys/mman.h>

#include <new>

#include "kernels/base/system.h"

namespace gnnstore {

PackMemory::PackMemory(int64_t num_bytes) : num_bytes_(num_bytes) {
    if (num_bytes == 0) return;
    void *const place = sys::mmap(nullptr, static_cast<size_t>(num_bytes), PROT_READ | PROT_WRITE,
                                  MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (place == MAP_FAILED) throw std::bad_alloc();
    data_ = static_cast<uint8_t *>(place);
    // Only a hint. It spares most page faults, and many entries of the processor's page tables.
    (void)sys::madvise(place, static_cast<size_t>(num_bytes), MADV_HUGEPAGE);
}

PackMemory::~PackMemory() {
    if (data_ != nullptr) ::munmap(data_, static_cast<size_t>(num_bytes_));
}

}  // namespace gnnstore
