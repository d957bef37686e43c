// Exceptions of kernels. std::invalid_argument becomes ValueError, std::out_of_range
// becomes IndexError, and IoError becomes the OSError subclass of its errno.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>

namespace gnnstore {

class IoError : public std::runtime_error {
public:
    IoError(int code, const std::string &message, std::string path, std::string other_path = {})
        : std::runtime_error(message),
          code(code),
          path(std::move(path)),
          other_path(std::move(other_path)) {}

    int code;                // an errno value
    std::string path;        // as given by the caller
    std::string other_path;  // the second path of a rename, else empty
};

// Sizes come from headers and callers, so their arithmetic is checked: a wrapped product
// would pass the bounds check that it was computed for.
inline int64_t checked_multiply(int64_t a, int64_t b, const char *what) {
    int64_t result;
    if (__builtin_mul_overflow(a, b, &result))
        throw std::invalid_argument(std::string(what) + " is too large: " + std::to_string(a) +
                                    " * " + std::to_string(b) + " does not fit in 64 bits");
    return result;
}

inline int64_t checked_add(int64_t a, int64_t b, const char *what) {
    int64_t result;
    if (__builtin_add_overflow(a, b, &result))
        throw std::invalid_argument(std::string(what) + " is too large: " + std::to_string(a) +
                                    " + " + std::to_string(b) + " does not fit in 64 bits");
    return result;
}

}  // namespace gnnstore
