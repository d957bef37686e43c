#include <string>

#include "kernels/base/errors.h"
#include "kernels/sampling/sampling.h"

namespace gnnstore {

int64_t random_reads(const int32_t *table, int64_t table_size, const int64_t *positions,
                     int64_t num_positions) {
    int64_t sum = 0;
    for (int64_t i = 0; i < num_positions; ++i) {
        const int64_t position = positions[i];
        if (position < 0 || position >= table_size)
            throw out_of_range("position ", position, " at ", i, " is outside [0, ", table_size,
                               ")");
        sum += table[position];
    }
    return sum;
}

}  // namespace gnnstore
