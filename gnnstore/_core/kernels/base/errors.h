// Exceptions of kernels. std::invalid_argument becomes ValueError, std::out_of_range
// becomes IndexError, and IoError becomes the OSError subclass of its errno.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <type_traits>
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

// The parts of a message one behind the other, numbers as digits.
template <class... Parts>
std::string text_of(const Parts &...parts) {
    std::string text;
    const auto add = [&text](const auto &part) {
        if constexpr (std::is_arithmetic_v<std::remove_cvref_t<decltype(part)>>)
            text += std::to_string(part);
        else
            text += part;
    };
    (add(parts), ...);
    return text;
}

// What is thrown for an argument, and for an index.
template <class... Parts>
std::invalid_argument invalid(const Parts &...parts) {
    return std::invalid_argument(text_of(parts...));
}

template <class... Parts>
void require(bool good, const Parts &...parts) {
    if (!good) [[unlikely]]
        throw invalid(parts...);
}

template <class... Parts>
std::out_of_range out_of_range(const Parts &...parts) {
    return std::out_of_range(text_of(parts...));
}

// Sizes come from headers and callers, so their arithmetic is checked: a wrapped product
// would pass the bounds check that it was computed for.
inline int64_t checked_multiply(int64_t a, int64_t b, const char *what) {
    int64_t result;
    if (__builtin_mul_overflow(a, b, &result))
        throw invalid(what, " is too large: ", a, " * ", b, " does not fit in 64 bits");
    return result;
}

inline int64_t checked_add(int64_t a, int64_t b, const char *what) {
    int64_t result;
    if (__builtin_add_overflow(a, b, &result))
        throw invalid(what, " is too large: ", a, " + ", b, " does not fit in 64 bits");
    return result;
}

}  // namespace gnnstore
