// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "comm/communicator/random_all_reduces.hpp"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>
#include <random>

#include <catch2/catch.hpp>
#include <fmt/format.h>
#include <unistd.h>

#include "comm/communicator/all_reduce_reference.hpp"

namespace oriel::test {

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

StreamTable::StreamTable(const char* backend, std::uint64_t seed) {
  char path[] = "/tmp/oriel-test-table-XXXXXX";
  const int fd = ::mkstemp(path);
  require(fd >= 0, "a file for a table");
  ::close(fd);
  path_ = path;
  const std::uint64_t depth = 2 + seed / 8 % 6;
  std::ofstream(path_) << fmt::format("{} 2 max stream 8 256 {} {} {}\n", backend, 128 << seed % 8,
                                      depth, 1 + seed / 64 % (depth - 1));
}

StreamTable::~StreamTable() {
  ::unlink(path_.c_str());
}

int scaled(int calls) {
  const char* percent = std::getenv("ORIEL_TEST_PERCENT");
  return percent != nullptr ? std::max(1, calls * std::atoi(percent) / 100) : calls;
}

namespace {

constexpr std::size_t kGuard = 64;    // bytes on each side of an output that must stay unchanged
constexpr std::size_t kSlack = 4096;  // bytes over which offsets vary, behind the first kGuard
constexpr std::byte kGuardByte{0x5a};

/// Position of one rank's input and output: kind of memory, and offset in that memory's area.
struct Place {
  std::size_t input_kind = 0;
  std::size_t output_kind = 0;
  std::size_t input_offset = 0;
  std::size_t output_offset = 0;
};

/// One call; every rank draws the same.
struct RandomCall {
  DataType type = DataType::f32;
  ReduceOp op = ReduceOp::sum;
  Inputs inputs = Inputs::moderate;
  std::size_t count = 0;
  bool in_place = false;
  bool scalar_on_device = false;
  std::uint64_t seed = 0;
  std::vector<Place> places;  // by rank

  std::size_t bytes() const { return count * size_of(type); }
  std::uint64_t input_seed(int rank) const {
    return mix(seed, static_cast<std::uint64_t>(rank) + 1);
  }
  std::uint64_t scalar(int rank) const {
    std::uint64_t bits = 0;
    fill_elements(type, Inputs::moderate, mix(seed, 1000 + static_cast<std::uint64_t>(rank)),
                  reinterpret_cast<std::byte*>(&bits), 1);
    return bits;
  }
  std::vector<std::byte> input(int rank) const {
    std::vector<std::byte> elements(bytes());
    fill_elements(type, inputs, input_seed(rank), elements.data(), count);
    return elements;
  }
  std::string text(const std::vector<std::string>& kinds) const {
    std::string where;
    for (const Place& place : places) {
      where += fmt::format(" {}{}+{} to {}+{}", where.empty() ? "" : "| ", kinds[place.input_kind],
                           place.input_offset, kinds[place.output_kind], place.output_offset);
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

Place draw_place(std::mt19937_64& rng, const RandomCall& call, std::size_t kinds,
                 bool input_registered, bool output_registered) {
  const std::size_t element = size_of(call.type);
  const auto kind = [&](bool registered) {
    return registered ? RankMemory::kRegistrable : 1 + rng() % (kinds - 1);
  };
  const auto offset = [&] { return kGuard + rng() % (kSlack / element) * element; };
  Place place{kind(input_registered), kind(output_registered), offset(), offset()};
  const std::uint64_t form = rng() % 6;
  if (form < 2) place.input_offset = place.output_offset = kGuard;
  if (form == 2) place.input_offset = place.output_offset = kGuard + element;
  if (call.in_place) place.input_kind = place.output_kind;
  return place;
}

RandomCall draw_call(std::uint64_t seed, int ranks, std::size_t most, std::size_t kinds) {
  std::mt19937_64 rng(seed);
  RandomCall call;
  call.seed = seed;
  call.type = static_cast<DataType>(rng() % kDataTypeCount);
  call.op = static_cast<ReduceOp>(rng() % kReduceOpCount);
  const Inputs inputs[] = {Inputs::moderate, Inputs::moderate, Inputs::any_bits, Inputs::edges};
  call.inputs = inputs[rng() % 4];
  call.count = draw_count(rng, most);
  call.in_place = rng() % 2 == 0;
  call.scalar_on_device = rng() % 2 == 0;
  const std::uint64_t how = rng() % 5;
  const bool both[] = {rng() % 2 == 0, rng() % 2 == 0};
  const Place common = draw_place(rng, call, kinds, how == 0 || both[0], how == 0 || both[1]);
  for (int rank = 0; rank < ranks; ++rank) {
    Place place = common;  // 0 and 1: the same on all ranks
    // 2: windows, different offsets; 3: nothing registered; 4: each rank differs
    if (how == 2) place = draw_place(rng, call, kinds, true, true);
    if (how == 3) place = draw_place(rng, call, kinds, false, false);
    if (how == 4) place = draw_place(rng, call, kinds, rng() % 2 == 0, rng() % 2 == 0);
    call.places.push_back(place);
  }
  return call;
}

/// The buffers of one rank: for each kind of memory, one area for inputs and one for outputs.
class Arena {
 public:
  Arena(const MemoryFactory& factory, int rank, std::size_t area_bytes)
      : area_(area_bytes), memory_(factory.make(rank, 2 * area_bytes)) {}

  RankMemory& memory() const { return *memory_; }
  void* window() const { return memory_->area(RankMemory::kRegistrable); }
  void* nested_window() const { return memory_->area(RankMemory::kRegistrable) + area_; }
  std::size_t window_bytes() const { return 2 * area_; }
  std::size_t nested_bytes() const { return area_; }

  std::byte* input(const RandomCall& call, const Place& place) const {
    if (call.in_place) return output(place);
    return memory_->area(place.input_kind) + place.input_offset;
  }
  std::byte* output(const Place& place) const {
    return memory_->area(place.output_kind) + area_ + place.output_offset;
  }

 private:
  std::size_t area_;
  std::unique_ptr<RankMemory> memory_;
};

std::size_t area_bytes(const BatchOptions& options) {
  const std::size_t bytes = options.most * 8 + kSlack + 2 * kGuard;
  return (bytes + 4095) / 4096 * 4096;
}

/// Runs a batch of random calls for the ranks of one process.
class Batch {
 public:
  Batch(const MemoryFactory& factory, TestRanks& test_ranks, const BatchOptions& options)
      : factory_(factory), test_ranks_(test_ranks), options_(options) {
    for (const int rank : test_ranks.ranks())
      arenas_.emplace_back(factory, rank, area_bytes(options));
    init();
    std::vector<void*> whole, nested;
    for (const Arena& arena : arenas_) {
      whole.push_back(arena.window());
      nested.push_back(arena.nested_window());
    }
    test_ranks.register_windows(comms_, whole, arenas_[0].window_bytes());
    test_ranks.register_windows(comms_, nested, arenas_[0].nested_bytes());
  }

  void run() {
    for (int i = 0; i < options_.calls; ++i) {
      const RandomCall call = draw_call(mix(options_.seed, static_cast<std::uint64_t>(i)),
                                        test_ranks_.size(), options_.most, factory_.kinds.size());
      try {
        run_call(call, i);
      } catch (const std::exception& error) {
        throw std::runtime_error(fmt::format("seed {:#x} call {} ({}): {}", options_.seed, i,
                                             call.text(factory_.kinds), error.what()));
      }
    }
    test_ranks_.barrier();
    for (int i = 0; i < options_.calls; ++i) compare_hashes(i);
    test_ranks_.barrier();
    test_ranks_.destroy(comms_);
    test_ranks_.barrier();  // freeing memory may wait for work of other ranks on the same device
  }

 private:
  void init() {
    const ncclUniqueId id = test_ranks_.next_id();
    comms_.resize(arenas_.size());
    require(test_ranks_.together([&](std::size_t i, int rank) {
      arenas_[i].memory().enter();
      return ncclCommInitRank(&comms_[i], test_ranks_.size(), id, rank);
    }),
            "ncclCommInitRank");
  }

  std::size_t word_of(int call, int rank) const {
    return static_cast<std::size_t>(call) * static_cast<std::size_t>(test_ranks_.size()) +
           static_cast<std::size_t>(rank);
  }

  void prepare(const RandomCall& call, std::size_t i) {
    const int rank = test_ranks_.ranks()[i];
    const Place& place = call.places[static_cast<std::size_t>(rank)];
    const std::vector<std::byte> guarded(call.bytes() + 2 * kGuard, kGuardByte);
    const std::vector<std::byte> input = call.input(rank);
    RankMemory& memory = arenas_[i].memory();
    memory.write(arenas_[i].output(place) - kGuard, guarded.data(), guarded.size());
    memory.write(arenas_[i].input(call, place), input.data(), input.size());
  }

  /// Returns the operation of each rank. A premul_sum is created for this call.
  std::vector<ncclRedOp_t> make_ops(const RandomCall& call) {
    std::vector<ncclRedOp_t> ops(arenas_.size(), static_cast<ncclRedOp_t>(call.op));
    if (call.op != ReduceOp::premul_sum) return ops;
    for (std::size_t i = 0; i < arenas_.size(); ++i) {
      std::uint64_t bits = call.scalar(test_ranks_.ranks()[i]);
      RankMemory& memory = arenas_[i].memory();
      void* scalar = &bits;
      if (call.scalar_on_device) {
        memory.write(memory.scalar(), reinterpret_cast<const std::byte*>(&bits), sizeof bits);
        scalar = memory.scalar();
      }
      require(ncclRedOpCreatePreMulSum(
                  &ops[i], scalar, static_cast<ncclDataType_t>(call.type),
                  call.scalar_on_device ? ncclScalarDevice : ncclScalarHostImmediate, comms_[i]),
              "ncclRedOpCreatePreMulSum");
    }
    return ops;
  }

  void run_call(const RandomCall& call, int number) {
    for (std::size_t i = 0; i < arenas_.size(); ++i) prepare(call, i);
    const std::vector<ncclRedOp_t> ops = make_ops(call);
    require(test_ranks_.together([&](std::size_t i, int rank) {
      const Place& place = call.places[static_cast<std::size_t>(rank)];
      return ncclAllReduce(arenas_[i].input(call, place), arenas_[i].output(place), call.count,
                           static_cast<ncclDataType_t>(call.type), ops[i], comms_[i],
                           arenas_[i].memory().stream());
    }),
            "ncclAllReduce");
    if (call.op == ReduceOp::premul_sum) {
      for (std::size_t i = 0; i < arenas_.size(); ++i) {
        require(ncclRedOpDestroy(ops[i], comms_[i]), "ncclRedOpDestroy");
      }
    }
    for (std::size_t i = 0; i < arenas_.size(); ++i) arenas_[i].memory().wait(comms_[i]);
    for (std::size_t i = 0; i < arenas_.size(); ++i) check_call(call, number, i);
  }

  void check_call(const RandomCall& call, int number, std::size_t i) {
    const int rank = test_ranks_.ranks()[i];
    const Place& place = call.places[static_cast<std::size_t>(rank)];
    const std::size_t bytes = call.bytes();
    RankMemory& memory = arenas_[i].memory();
    std::vector<std::byte> guarded(bytes + 2 * kGuard);
    memory.read(guarded.data(), arenas_[i].output(place) - kGuard, guarded.size());
    const std::byte* const output = guarded.data() + kGuard;
    for (std::size_t k = 0; k < kGuard; ++k) {
      require(output[-1 - static_cast<std::ptrdiff_t>(k)] == kGuardByte,
              fmt::format("rank {}: byte {} before the output was written", rank, k + 1));
      require(output[bytes + k] == kGuardByte,
              fmt::format("rank {}: byte {} behind the output was written", rank, k));
    }
    test_ranks_.word(word_of(number, rank)) = hash_bytes(output, bytes);
    if (!call.in_place) {
      std::vector<std::byte> input(bytes);
      memory.read(input.data(), arenas_[i].input(call, place), bytes);
      require(input == call.input(rank), fmt::format("rank {}: the input has changed", rank));
    }
    if (number % test_ranks_.size() == rank) compare_values(call, rank, output);
  }

  void compare_values(const RandomCall& call, int rank, const std::byte* output) {
    const std::size_t element = size_of(call.type);
    std::vector<std::vector<std::byte>> inputs;
    std::vector<const std::byte*> arrays;
    std::vector<std::uint64_t> scalars;
    for (int source = 0; source < test_ranks_.size(); ++source) {
      arrays.push_back(inputs.emplace_back(call.input(source)).data());
      scalars.push_back(call.scalar(source));
    }
    std::vector<std::byte> expected(call.bytes());
    reduce_arrays(call.type, call.op, arrays, scalars, call.count, expected.data());
    const std::byte* const end = output + call.bytes();
    const auto [wrong, right] = std::mismatch(output, end, expected.begin());
    if (wrong != end) {
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
    for (int rank = 1; rank < test_ranks_.size(); ++rank) {
      require(test_ranks_.word(word_of(number, rank)) == test_ranks_.word(word_of(number, 0)),
              fmt::format("seed {:#x} call {}: rank {} has other bits than rank 0", options_.seed,
                          number, rank));
    }
  }

  const MemoryFactory& factory_;
  TestRanks& test_ranks_;
  BatchOptions options_;
  std::vector<Arena> arenas_;
  std::vector<ncclComm_t> comms_;
};

}  // namespace

bool run_batch(const MemoryFactory& factory, LaunchMode launch_mode, int ranks,
               const Variables& variables, const BatchOptions& options) {
  Environment environment(variables);
  std::string settings;
  for (const auto& [name, value] : variables) settings += " " + name + "=" + value;
  INFO(ranks << " ranks as " << name_of(launch_mode) << settings << ", seed " << options.seed);
  const auto results = run_ranks(
      launch_mode, ranks, [&](TestRanks& test_ranks) { Batch(factory, test_ranks, options).run(); },
      options.timeout);
  check_all_ok(results);
  return std::count(results.begin(), results.end(), "ok") ==
         static_cast<std::ptrdiff_t>(results.size());
}

}  // namespace oriel::test
