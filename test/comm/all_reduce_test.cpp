// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>

#include <catch2/catch.hpp>
#include <fmt/format.h>

#include "nccl.h"

#include "comm/all_reduce_reference.hpp"
#include "support/ranks.hpp"

namespace oriel::test {
namespace {

using namespace std::chrono_literals;

constexpr std::size_t kGuard = 64;    // bytes on each side of an output that must not change
constexpr std::size_t kSlack = 4096;  // how far into its area a buffer may begin
constexpr std::byte kGuardByte{0x5a};

std::uint64_t mix(std::uint64_t a, std::uint64_t b) {
  std::uint64_t x = a * 0x9e3779b97f4a7c15u + b + 0x632be59bd9b4e019u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

std::uint64_t hash_bytes(const std::byte* bytes, std::size_t count) {
  std::uint64_t hash = count + 1;
  for (std::size_t i = 0; i + 8 <= count; i += 8) {
    std::uint64_t word;
    std::memcpy(&word, bytes + i, 8);
    hash = (hash ^ word) * 0x9e3779b97f4a7c15u;
    hash ^= hash >> 29;
  }
  for (std::size_t i = count & ~std::size_t{7}; i < count; ++i) {
    hash = (hash ^ static_cast<std::uint64_t>(bytes[i])) * 0x9e3779b97f4a7c15u;
  }
  return hash | 1;
}

/// Where the input and output of one rank begin, within its areas.
struct Place {
  bool input_registered = false;
  bool output_registered = false;
  std::size_t input_offset = 0;
  std::size_t output_offset = 0;
};

/// One call, which every rank draws in the same way.
struct Call {
  DataType type = DataType::f32;
  ReduceOp op = ReduceOp::sum;
  Inputs inputs = Inputs::moderate;
  std::size_t count = 0;
  bool in_place = false;
  bool scalar_on_device = false;
  std::uint64_t seed = 0;
  std::vector<Place> places;  // by rank

  std::uint64_t input_seed(int rank) const {
    return mix(seed, static_cast<std::uint64_t>(rank) + 1);
  }
  std::uint64_t scalar(int rank) const {
    std::uint64_t bits = 0;
    fill_elements(type, Inputs::moderate, mix(seed, 1000 + static_cast<std::uint64_t>(rank)),
                  reinterpret_cast<std::byte*>(&bits), 1);
    return bits;
  }
  std::string text() const {
    std::string where;
    for (const Place& place : places) {
      where += fmt::format(" {}{}+{}/{}+{}", where.empty() ? "" : "|",
                           place.input_registered ? "w" : "m", place.input_offset,
                           place.output_registered ? "w" : "m", place.output_offset);
    }
    return fmt::format("{} {} count {} {} inputs {}{}", name_of(type), name_of(op), count,
                       in_place ? "in place" : "out of place", static_cast<int>(inputs), where);
  }
};

std::size_t draw_count(std::mt19937_64& rng, std::size_t most) {
  if (rng() % 30 == 0) return 0;
  const double exponent =
      std::uniform_real_distribution<double>(0, std::log(static_cast<double>(most)))(rng);
  const auto count = static_cast<std::size_t>(std::exp(exponent));
  switch (rng() % 3) {
    case 0:
      return std::min(count | 1, most);
    case 1:
      return std::min((count + 7) / 8 * 8, most);
    default:
      return std::min(count, most);
  }
}

Call draw_call(std::uint64_t seed, int ranks, std::size_t most) {
  std::mt19937_64 rng(seed);
  Call call;
  call.seed = seed;
  call.type = static_cast<DataType>(rng() % kDataTypeCount);
  call.op = static_cast<ReduceOp>(rng() % kReduceOpCount);
  const Inputs inputs[] = {Inputs::moderate, Inputs::moderate, Inputs::any_bits, Inputs::edges};
  call.inputs = inputs[rng() % 4];
  call.count = draw_count(rng, most);
  call.in_place = rng() % 2 == 0;
  call.scalar_on_device = rng() % 2 == 0;
  const std::size_t element = size_of(call.type);
  const auto draw_place = [&](bool input, bool output) {
    const auto offset = [&] { return kGuard + rng() % (kSlack / element) * element; };
    Place place{input, output, offset(), offset()};
    if (rng() % 3 == 0) place.input_offset = place.output_offset = kGuard;
    if (call.in_place) place.input_registered = place.output_registered;
    return place;
  };
  const std::uint64_t how = rng() % 5;
  const bool both[] = {rng() % 2 == 0, rng() % 2 == 0};
  const Place common = draw_place(how == 0 || both[0], how == 0 || both[1]);
  for (int rank = 0; rank < ranks; ++rank) {
    Place place = common;                                              // 0, 1: the same everywhere
    if (how == 2) place = draw_place(true, true);                      // windows, other offsets
    if (how == 3) place = draw_place(false, false);                    // malloc
    if (how == 4) place = draw_place(rng() % 2 == 0, rng() % 2 == 0);  // each as it likes
    call.places.push_back(place);
  }
  return call;
}

/// The memory of one rank: an area for inputs and one for outputs, in windows and in the heap.
class Arena {
 public:
  explicit Arena(std::size_t area_bytes)
      : area_(area_bytes), registered_(2 * area_bytes), heap_(2 * area_bytes) {}

  void* window() const { return registered_.at(); }
  void* nested_window() const { return registered_.at(area_); }
  std::size_t window_bytes() const { return 2 * area_; }
  std::size_t nested_bytes() const { return area_; }

  std::byte* input(const Call& call, const Place& place) {
    if (call.in_place) return output(place);
    return (place.input_registered ? registered_.at() : heap_.data()) + place.input_offset;
  }
  std::byte* output(const Place& place) {
    return (place.output_registered ? registered_.at() : heap_.data()) + area_ +
           place.output_offset;
  }

 private:
  std::size_t area_;
  Buffer registered_;
  std::vector<std::byte> heap_;
};

struct BatchOptions {
  std::uint64_t seed = 0;
  int calls = 0;
  std::size_t most = 0;  ///< elements of a call
};

std::size_t area_bytes(const BatchOptions& options) {
  const std::size_t bytes = options.most * 8 + kSlack + 2 * kGuard;
  return (bytes + 4095) / 4096 * 4096;
}

/// Runs a batch of random calls as the ranks of one player.
class Batch {
 public:
  Batch(Players& players, const BatchOptions& options) : players_(players), options_(options) {
    for (std::size_t i = 0; i < players.ranks().size(); ++i)
      arenas_.emplace_back(area_bytes(options));
    comms_ = players.init();
    std::vector<void*> whole, nested;
    for (const Arena& arena : arenas_) {
      whole.push_back(arena.window());
      nested.push_back(arena.nested_window());
    }
    players.register_windows(comms_, whole, arenas_[0].window_bytes());
    players.register_windows(comms_, nested, arenas_[0].nested_bytes());
  }

  void run() {
    for (int i = 0; i < options_.calls; ++i) {
      const Call call = draw_call(mix(options_.seed, static_cast<std::uint64_t>(i)),
                                  players_.size(), options_.most);
      try {
        run_call(call, i);
      } catch (const std::exception& error) {
        throw std::runtime_error(fmt::format("seed {:#x} call {} ({}): {}", options_.seed, i,
                                             call.text(), error.what()));
      }
    }
    players_.barrier();
    for (int i = 0; i < options_.calls; ++i) compare_hashes(i);
    players_.barrier();
    players_.destroy(comms_);
  }

 private:
  std::size_t word_of(int call, int rank) const {
    return static_cast<std::size_t>(call) * static_cast<std::size_t>(players_.size()) +
           static_cast<std::size_t>(rank);
  }

  void run_call(const Call& call, int number) {
    const std::size_t bytes = call.count * size_of(call.type);
    std::vector<std::uint64_t> scalars(players_.ranks().size());
    for (std::size_t i = 0; i < arenas_.size(); ++i) {
      const int rank = players_.ranks()[i];
      const Place& place = call.places[static_cast<std::size_t>(rank)];
      std::byte* const output = arenas_[i].output(place);
      std::memset(output - kGuard, static_cast<int>(kGuardByte), bytes + 2 * kGuard);
      fill_elements(call.type, call.inputs, call.input_seed(rank), arenas_[i].input(call, place),
                    call.count);
      scalars[i] = call.scalar(rank);
    }
    std::vector<ncclRedOp_t> ops(arenas_.size(), static_cast<ncclRedOp_t>(call.op));
    if (call.op == ReduceOp::premul_sum) {
      for (std::size_t i = 0; i < arenas_.size(); ++i) {
        require(ncclRedOpCreatePreMulSum(
                    &ops[i], &scalars[i], static_cast<ncclDataType_t>(call.type),
                    call.scalar_on_device ? ncclScalarDevice : ncclScalarHostImmediate, comms_[i]),
                "ncclRedOpCreatePreMulSum");
      }
    }
    require(players_.together([&](std::size_t i, int rank) {
      const Place& place = call.places[static_cast<std::size_t>(rank)];
      return ncclAllReduce(arenas_[i].input(call, place), arenas_[i].output(place), call.count,
                           static_cast<ncclDataType_t>(call.type), ops[i], comms_[i], nullptr);
    }),
            "ncclAllReduce");
    if (call.op == ReduceOp::premul_sum) {
      for (std::size_t i = 0; i < arenas_.size(); ++i) {
        require(ncclRedOpDestroy(ops[i], comms_[i]), "ncclRedOpDestroy");
      }
    }
    for (std::size_t i = 0; i < arenas_.size(); ++i) check_call(call, number, i);
  }

  void check_call(const Call& call, int number, std::size_t i) {
    const int rank = players_.ranks()[i];
    const Place& place = call.places[static_cast<std::size_t>(rank)];
    const std::size_t bytes = call.count * size_of(call.type);
    const std::byte* const output = arenas_[i].output(place);
    for (std::size_t k = 0; k < kGuard; ++k) {
      require(output[-1 - static_cast<std::ptrdiff_t>(k)] == kGuardByte,
              fmt::format("rank {}: byte {} before the output was written", rank, k + 1));
      require(output[bytes + k] == kGuardByte,
              fmt::format("rank {}: byte {} behind the output was written", rank, k));
    }
    players_.word(word_of(number, rank)) = hash_bytes(output, bytes);
    if (!call.in_place) {
      std::vector<std::byte> input(bytes);
      fill_elements(call.type, call.inputs, call.input_seed(rank), input.data(), call.count);
      require(std::memcmp(input.data(), arenas_[i].input(call, place), bytes) == 0,
              fmt::format("rank {}: the input has changed", rank));
    }
    if (number % players_.size() == rank) compare_values(call, rank, output);
  }

  void compare_values(const Call& call, int rank, const std::byte* output) {
    const std::size_t element = size_of(call.type);
    const std::size_t bytes = call.count * element;
    std::vector<std::vector<std::byte>> inputs;
    std::vector<const std::byte*> arrays;
    std::vector<std::uint64_t> scalars;
    for (int source = 0; source < players_.size(); ++source) {
      inputs.emplace_back(bytes);
      fill_elements(call.type, call.inputs, call.input_seed(source), inputs.back().data(),
                    call.count);
      arrays.push_back(inputs.back().data());
      scalars.push_back(call.scalar(source));
    }
    std::vector<std::byte> expected(bytes);
    reduce_arrays(call.type, call.op, arrays, scalars, call.count, expected.data());
    const auto [wrong, right] = std::mismatch(output, output + bytes, expected.begin());
    if (wrong != output + bytes) {
      throw std::runtime_error(
          fmt::format("rank {}: element {} differs from the reference, at byte {} {:#x} != {:#x}",
                      rank, static_cast<std::size_t>(wrong - output) / element, wrong - output,
                      static_cast<int>(*wrong), static_cast<int>(*right)));
    }
    if (call.inputs != Inputs::moderate) return;
    for (std::size_t k = 0; k < call.count; k += 1 + call.count / 37) {
      const std::string text = compare_with_exact(call.type, call.op, arrays, scalars, k, output);
      require(text.empty(), fmt::format("rank {}: element {} is {}", rank, k, text));
    }
  }

  void compare_hashes(int number) {
    for (int rank = 1; rank < players_.size(); ++rank) {
      require(players_.word(word_of(number, rank)) == players_.word(word_of(number, 0)),
              fmt::format("seed {:#x} call {}: rank {} has other bits than rank 0", options_.seed,
                          number, rank));
    }
  }

  Players& players_;
  BatchOptions options_;
  std::vector<Arena> arenas_;
  std::vector<ncclComm_t> comms_;
};

std::uint64_t test_seed() {
  const char* given = std::getenv("ORIEL_TEST_SEED");
  return given != nullptr ? std::strtoull(given, nullptr, 0) : std::random_device{}();
}

int scaled(int calls) {
  const char* percent = std::getenv("ORIEL_TEST_PERCENT");
  return percent != nullptr ? std::max(1, calls * std::atoi(percent) / 100) : calls;
}

void run_batch(Cast cast, int ranks, const Variables& variables, const BatchOptions& options) {
  Environment environment(variables);
  std::string settings;
  for (const auto& [name, value] : variables) settings += " " + name + "=" + value;
  INFO(ranks << " ranks as " << name_of(cast) << settings << ", seed " << options.seed);
  check_all_ok(play(
      cast, ranks, [&](Players& players) { Batch(players, options).run(); }, 100s));
}

TEST_CASE("1.40 1.26 1.27 2,000 random all-reduces equal the reference bit for bit") {
  std::uint64_t seed = test_seed();
  WARN("ORIEL_TEST_SEED=" << seed);
  std::mt19937_64 rng(seed);
  const char* const algorithms[] = {"", "one_shot", "two_shot", "stream"};
  for (int ranks = 1; ranks <= 8; ++ranks) {
    for (const Cast cast : kCasts) {
      for (const char* algorithm : algorithms) {
        Variables variables = {{"ORIEL_ALGORITHM", algorithm},
                               {"ORIEL_SCRATCH_SIZE", rng() % 4 == 0 ? "1M" : "16M"}};
        if (rng() % 2 == 0) {
          variables.emplace_back("ORIEL_CHUNK", std::to_string(128 << rng() % 8));
          variables.emplace_back("ORIEL_DEPTH", std::to_string(2 + rng() % 6));
        }
        if (rng() % 4 == 0) variables.emplace_back("ORIEL_SPIN", "0");
        const char* const simds[] = {"auto", "baseline", "avx2", "avx512"};
        variables.emplace_back("ORIEL_SIMD", simds[rng() % 4]);
        const std::size_t most = variables.size() > 3 ? 40'000 : 300'000;
        run_batch(cast, ranks, variables, {rng(), scaled(21), most});
      }
    }
  }
}

TEST_CASE("1.28 1.40 random all-reduces among 16 and 64 ranks") {
  const std::uint64_t seed = test_seed();
  WARN("ORIEL_TEST_SEED=" << seed);
  std::mt19937_64 rng(seed);
  for (const char* algorithm : {"", "one_shot", "two_shot", "stream"}) {
    const Variables variables = {{"ORIEL_ALGORITHM", algorithm}, {"ORIEL_SCRATCH_SIZE", "1M"}};
    for (const Cast cast : kCasts) run_batch(cast, 16, variables, {rng(), scaled(8), 20'000});
    run_batch(Cast::processes, 64, variables, {rng(), scaled(4), 4'000});
  }
}

// The hash of one result for each algorithm: they must be equal, with the setting and without.
TEST_CASE("1.29 bits do not depend on the algorithm") {
  for (const int ranks : {3, 6}) {
    std::vector<std::uint64_t> hashes;
    for (const char* deterministic : {"0", "1"}) {
      for (const char* algorithm : {"one_shot", "two_shot", "stream"}) {
        for (const char* chunk : {"1024", "32K"}) {
          Environment environment(Variables{{"ORIEL_ALGORITHM", algorithm},
                                            {"ORIEL_DETERMINISTIC", deterministic},
                                            {"ORIEL_CHUNK", chunk},
                                            {"ORIEL_SCRATCH_SIZE", "16M"}});
          Stage stage(Cast::threads, ranks, [](Players& players) {
            auto comms = players.init();
            std::vector<std::byte> data(77'777 * 4);
            fill_elements(DataType::f32, Inputs::moderate,
                          static_cast<std::uint64_t>(players.first()), data.data(), 77'777);
            require(ncclAllReduce(data.data(), data.data(), 77'777, ncclFloat32, ncclSum, comms[0],
                                  nullptr),
                    "ncclAllReduce");
            players.word(static_cast<std::size_t>(players.first())) =
                hash_bytes(data.data(), data.size());
            players.destroy(comms);
          });
          check_all_ok(stage.collect(60s));
          for (int rank = 0; rank < ranks; ++rank) {
            hashes.push_back(stage.board().words[static_cast<std::size_t>(rank)]);
          }
        }
      }
    }
    CHECK(hashes.front() != 0);
    CHECK(std::count(hashes.begin(), hashes.end(), hashes.front()) ==
          static_cast<std::ptrdiff_t>(hashes.size()));
  }
}

}  // namespace
}  // namespace oriel::test
