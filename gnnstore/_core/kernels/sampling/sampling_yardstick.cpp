#include <stdexcept>
#include <string>

#include "kernels/sampling/sampling.h"

namespace gnnstore {

int64_t random_reads(const int32_t *table, int64_t table_size, const int64_t *positions,
                     int64_t num_positions) {
    int64_t sum = 0;
    for (int64_t i = 0; i < num_positions; ++i) {
        const int64_t position = positions[i];
        if (position < 0 || position >= table_size)
            throw std::out_of_range("position " + std::to_string(position) + " at " +
                                    std::to_string(i) + " is outside [0, " +
                                    std::to_string(table_size) + ")");
        sum += table[position];
    }
    return sum;
}

}  // namespace gnnstore
