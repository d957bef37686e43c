// How rows of int8 are decoded, from Python.
#pragma once

#include <string>

#include "bindings/arrays.h"
#include "kernels/rows/decode.h"

namespace gnnstore {

inline Decoding decoding_of(const InputArray &scales, const std::string &dtype) {
    const float *values = input_data<float>(scales, "scales", "float32");
    const int64_t width = length(scales);
    if (dtype == "float32") return {values, width, DecodedType::float32};
    if (dtype == "float16") return {values, width, DecodedType::float16};
    require(dtype == "bfloat16", "dtype must be float32, float16 or bfloat16, got ", dtype);
    return {values, width, DecodedType::bfloat16};
}

}  // namespace gnnstore
