// Files mapped one behind the other, so that the shards of an array are one array.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace gnnstore {

enum class Advice { normal, random, sequential };

// A read-only range of addresses over the first body_bytes[i] bytes of each file, unmapped
// with the object. The descriptors are closed at once: a store of thousands of shards must
// not use up the process's limit on open files.
class Mapping {
public:
    Mapping(const std::vector<std::string> &paths, const std::vector<int64_t> &body_bytes,
            Advice advice);
    ~Mapping();
    Mapping(const Mapping &) = delete;
    Mapping &operator=(const Mapping &) = delete;

    const uint8_t *data() const { return data_; }
    int64_t size() const { return num_bytes_; }

private:
    uint8_t *data_ = nullptr;
    int64_t num_bytes_ = 0;       // the sum of the bodies
    size_t reserved_bytes_ = 0;   // the same, up to whole pages
};

}  // namespace gnnstore
