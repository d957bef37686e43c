// Memory for the length of one call of packing. Not from the buffer pool: packing has a budget
// of its own, the pool rounds up by an eighth, and what it keeps for later is in no budget.
#pragma once

#include <cstdint>

namespace gnnstore {

// Begins on a page; contents are zeros. Throws std::bad_alloc.
class PackMemory {
public:
    explicit PackMemory(int64_t num_bytes);
    ~PackMemory();
    PackMemory(const PackMemory &) = delete;
    PackMemory &operator=(const PackMemory &) = delete;

    uint8_t *data() const { return data_; }

private:
    const int64_t num_bytes_;
    uint8_t *data_ = nullptr;
};

}  // namespace gnnstore
