#include "kernels/building/rmat.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <vector>

#include "kernels/base/errors.h"
#include "kernels/base/parallel.h"
#include "kernels/base/philox.h"

namespace gnnstore {
namespace {

// The second word of the keys: what a draw is for. ASCII, so that dumps can be read.
constexpr uint64_t edges_purpose = 0x726D61742D656467;    // "rmat-edg"
constexpr uint64_t permute_purpose = 0x7065726D2D696473;  // "perm-ids"

constexpr int64_t items_per_task = 1 << 16;

void check_scale(int scale) {
    if (scale < 0 || scale > max_scale)
        throw invalid("scale must be between 0 and ", max_scale, ", got ", scale);
}

// A quadrant boundary of one level, in units of 2^-32: a draw lies behind it if it is
// greater than `last`, or `always`. The boundary itself, which may be 0 or 2^32, would not
// fit in 32 bits, and draws are compared several at a time.
struct Boundary {
    explicit Boundary(double cumulative) {
        const auto end =
            static_cast<uint64_t>(std::floor(std::min(cumulative, 1.0) * 4294967296.0 + 0.5));
        last = static_cast<uint32_t>(end - 1);
        always = end == 0;
    }
    uint32_t passed_by(uint32_t draw) const { return (draw > last) | always; }

    uint32_t last, always;
};

struct Level {
    Boundary end_a, end_b, end_c;
};

std::vector<Level> make_levels(int scale, const double *probabilities) {
    std::vector<Level> levels;
    for (int level = 0; level < scale; ++level) {
        const double *row = probabilities + 4 * level;
        double sum = 0;
        for (int i = 0; i < 4; ++i) {
            if (!(row[i] >= 0 && row[i] <= 1))  // also refuses NaN
                throw invalid("probabilities[", level, ", ", i, "] must be in [0, 1], got ",
                              row[i]);
            sum += row[i];
        }
        if (std::abs(sum - 1) > 1e-6)
            throw invalid("probabilities[", level, "] must add up to 1, got ", sum);
        levels.push_back({Boundary(row[0]), Boundary(row[0] + row[1]),
                          Boundary(row[0] + row[1] + row[2])});
    }
    return levels;
}

constexpr int64_t levels_per_block = 8;
constexpr int64_t tile_edges = 32;

// Each level takes 32 bits of a draw: level l the (l % 8)-th slice, low half first, of the
// block with counter (edge, l / 8, 0, 0). A probability is thereby rounded to 2^-32.
//
// Works on a tile of edges, level by level and without branches: the compiler compares
// several edges' draws at once, and no random outcome is mispredicted.
void draw_tile(uint64_t first_edge, const std::vector<Level> &levels, const uint64_t key[2],
               uint64_t sources[tile_edges], uint64_t targets[tile_edges]) {
    std::fill_n(sources, tile_edges, 0);
    std::fill_n(targets, tile_edges, 0);
    const auto scale = static_cast<int64_t>(levels.size());
    for (int64_t first = 0; first < scale; first += levels_per_block) {
        uint32_t draws[levels_per_block][tile_edges];
        for (int64_t i = 0; i < tile_edges; ++i) {
            const uint64_t counter[4] = {first_edge + static_cast<uint64_t>(i),
                                         static_cast<uint64_t>(first / levels_per_block), 0, 0};
            uint64_t words[4];
            philox4x64_10(words, counter, key);
            for (int64_t l = 0; l < levels_per_block; ++l)
                draws[l][i] = static_cast<uint32_t>(words[l / 2] >> (32 * (l % 2)));
        }
        const int64_t num_levels = std::min(levels_per_block, scale - first);
        uint32_t source_bits[tile_edges] = {}, target_bits[tile_edges] = {};
        for (int64_t l = 0; l < num_levels; ++l) {
            const Level level = levels[static_cast<size_t>(first + l)];
            for (int64_t i = 0; i < tile_edges; ++i) {
                const uint32_t after_a = level.end_a.passed_by(draws[l][i]);
                const uint32_t after_b = level.end_b.passed_by(draws[l][i]);
                const uint32_t after_c = level.end_c.passed_by(draws[l][i]);
                source_bits[i] = source_bits[i] << 1 | after_b;
                target_bits[i] = target_bits[i] << 1 | (after_a ^ after_b ^ after_c);
            }
        }
        for (int64_t i = 0; i < tile_edges; ++i) {
            sources[i] = sources[i] << num_levels | source_bits[i];
            targets[i] = targets[i] << num_levels | target_bits[i];
        }
    }
}

// Calls body(begin, end) for consecutive ranges of items, on several threads.
template <class Body>
void for_each_range(int64_t num_items, int num_threads, const Body &body) {
    const int64_t num_tasks = num_items / items_per_task + (num_items % items_per_task != 0);
    run_workers(num_threads, num_tasks, [&](TaskQueue &queue) {
        for (int64_t task; queue.take(task);)
            body(task * items_per_task, std::min(num_items, (task + 1) * items_per_task));
    });
}

// An alternating Feistel network over a high part of scale / 2 bits and a low part of the
// rest: each round changes one part by a keyed hash of the other, so it can be undone
// whatever the hash is, and no id leaves [0, 2^scale).
class Permutation {
public:
    Permutation(int scale, uint64_t seed) {
        low_bits_ = scale - scale / 2;
        low_mask_ = (uint64_t{1} << low_bits_) - 1;
        high_mask_ = (uint64_t{1} << (scale / 2)) - 1;
        for (uint64_t block = 0; block < num_rounds / 4; ++block) {
            const uint64_t counter[4] = {block, 0, 0, 0}, key[2] = {seed, permute_purpose};
            philox4x64_10(&round_keys_[4 * block], counter, key);
        }
    }

    uint64_t forward(uint64_t id) const {
        uint64_t high = id >> low_bits_, low = id & low_mask_;
        for (size_t round = 0; round < num_rounds; round += 2) {
            low ^= hash(high ^ round_keys_[round]) & low_mask_;
            high ^= hash(low ^ round_keys_[round + 1]) & high_mask_;
        }
        return high << low_bits_ | low;
    }

    uint64_t backward(uint64_t id) const {
        uint64_t high = id >> low_bits_, low = id & low_mask_;
        for (size_t round = num_rounds; round > 0; round -= 2) {
            high ^= hash(low ^ round_keys_[round - 1]) & high_mask_;
            low ^= hash(high ^ round_keys_[round - 2]) & low_mask_;
        }
        return high << low_bits_ | low;
    }

private:
    static constexpr size_t num_rounds = 8;

    // A multiply folds every bit upwards and the shift brings the best ones down.
    static uint64_t hash(uint64_t value) {
        value *= 0x9E3779B97F4A7C15u;
        value ^= value >> 32;
        value *= 0xD6E8FEB86659FD93u;
        return value >> 32;
    }

    int low_bits_;
    uint64_t low_mask_, high_mask_;
    std::array<uint64_t, num_rounds> round_keys_;
};

}  // namespace

void rmat_edges(int64_t first_edge, int64_t num_edges, int scale, const double *probabilities,
                uint64_t seed, int64_t *sources, int64_t *targets, int num_threads) {
    check_scale(scale);
    check_num_threads(num_threads);
    require(first_edge >= 0, "first_edge must not be negative, got ", first_edge);
    checked_add(first_edge, num_edges, "first_edge + num_edges");
    const std::vector<Level> levels = make_levels(scale, probabilities);
    const uint64_t key[2] = {seed, edges_purpose};
    for_each_range(num_edges, num_threads, [&](int64_t begin, int64_t end) {
        uint64_t tile_sources[tile_edges], tile_targets[tile_edges];
        for (int64_t i = begin; i < end; i += tile_edges) {
            draw_tile(static_cast<uint64_t>(first_edge + i), levels, key, tile_sources,
                      tile_targets);
            const int64_t size = std::min(tile_edges, end - i);
            std::copy_n(tile_sources, size, sources + i);
            std::copy_n(tile_targets, size, targets + i);
        }
    });
}

void permute_ids(const int64_t *ids, int64_t num_ids, int scale, uint64_t seed, bool inverse,
                 int64_t *out, int num_threads) {
    check_scale(scale);
    check_num_threads(num_threads);
    const uint64_t num_values = uint64_t{1} << scale;
    for (int64_t i = 0; i < num_ids; ++i)
        if (static_cast<uint64_t>(ids[i]) >= num_values)
            throw out_of_range("id ", ids[i], " at position ", i, " is outside [0, ", num_values,
                               ")");
    const Permutation permutation(scale, seed);
    for_each_range(num_ids, num_threads, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
            const auto id = static_cast<uint64_t>(ids[i]);
            out[i] = static_cast<int64_t>(inverse ? permutation.backward(id)
                                                  : permutation.forward(id));
        }
    });
}

}  // namespace gnnstore
