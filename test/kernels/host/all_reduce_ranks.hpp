// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <iterator>
#include <limits>
#include <numeric>
#include <thread>
#include <vector>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include <catch2/catch.hpp>

#include "oriel/device/group.hpp"
#include "oriel/device/rounding.hpp"

#include "device/lsa_memory.hpp"
#include "kernels/algorithms/family.hpp"
#include "kernels/algorithms/group_reduce_ops.hpp"
#include "kernels/algorithms/stream.hpp"
#include "kernels/host/all_reduce_host.hpp"
#include "kernels/plan/choice.hpp"

/// Ranks of the CPU algorithms as threads of a test, without a communicator.
namespace oriel::kernels {

using namespace std::chrono_literals;

inline constexpr std::uint64_t kScratchBytes = 4 << 20;
inline constexpr std::uint64_t kOutputBytes = 1 << 20;  // window behind the scratch memory
inline constexpr Algorithm kAlgorithms[] = {Algorithm::one_shot, Algorithm::two_shot,
                                            Algorithm::stream, Algorithm::eager};
static_assert(std::size(kAlgorithms) == kAlgorithmCount);
inline constexpr std::uint32_t kNearWrap = std::numeric_limits<std::uint32_t>::max() - 2;

struct Shape {
  Algorithm algorithm = Algorithm::one_shot;
  std::uint64_t count = 1;
  std::size_t offset = 0;  // buffers' distance from a multiple of 64 bytes, in elements
  bool in_place = false;
  std::chrono::microseconds lateness{0};  // sleep of the last rank before its call
  int value = 0;                          // value of every input element; 0: the elements vary
  ReduceOp op = ReduceOp::sum;
  std::uint64_t block = 0;  // in elements; 0: the collective has no blocks
  int root = -1;            // reduce or broadcast only
  Collective collective = Collective::all_reduce;
  Backend owners = Backend::host;  // backend whose rule chooses the owners of shares
};

// Control bits of MXCSR, without the exception flags that arithmetic sets.
inline constexpr std::uint32_t kDefaultControl = 0x1f80;
#if defined(__x86_64__)
inline std::uint32_t control_word() {
  return _mm_getcsr() & ~0x3fu;
}
inline void set_control_word(std::uint32_t word) {
  _mm_setcsr(word);
}
#else
inline std::uint32_t control_word() {
  return kDefaultControl;
}
inline void set_control_word(std::uint32_t) {}
#endif

/// Group policy of a GPU's warp, whose threads one CPU thread runs one after the other.
struct SerialWarp {
  static inline thread_local std::uint32_t at = 0;
  static std::uint32_t rank() { return at; }
  static std::uint32_t size() { return 32; }
};

/// Moves and reduces as a GPU's warp does, for a stream of one CPU thread.
class EmulatedOps : public GroupReduceOps<std::int32_t, Family::sum, 0, SerialWarp> {
  using Base = GroupReduceOps<std::int32_t, Family::sum, 0, SerialWarp>;

 public:
  using Base::Base;

  void send(std::byte* slot, std::uint64_t first, std::uint64_t count) const {
    for_each_thread([&] { Base::send(slot, first, count); });
  }
  void copy_out(std::uint64_t first, const std::byte* slot, std::uint64_t count) const {
    for_each_thread([&] { Base::copy_out(first, slot, count); });
  }
  template <class Source, class Target>
  void reduce(const Source& source, const Target& target, int targets, std::uint64_t count) const {
    for_each_thread([&] { Base::reduce(source, target, targets, count); });
  }

 private:
  template <class Body>
  static void for_each_thread(const Body& body) {
    for (SerialWarp::at = 0; SerialWarp::at < SerialWarp::size(); ++SerialWarp::at) body();
  }
};

/// Ranks that are threads over the test's own scratch memory, without a communicator.
class Ranks {
 public:
  explicit Ranks(int ranks)
      : ranks_(ranks),
        layout_(make_scratch_layout(Backend::host, ranks, 1, kScratchBytes)),
        memory_(ranks, layout_.total_bytes + kOutputBytes),
        mapping_(memory_) {}

  const ScratchLayout& layout() const { return layout_; }
  std::byte* scratch(int rank) const {
    return reinterpret_cast<std::byte*>(mapping_.base()) +
           static_cast<std::size_t>(rank) * test::LsaMemory::kSlotBytes;
  }
  CtaCounters& counters(int rank) const {
    return *reinterpret_cast<CtaCounters*>(scratch(rank) + layout_.epochs);
  }

  /// Runs the call and counts errors of all ranks: failed calls, wrong elements, and bytes changed
  /// outside of the outputs.
  template <class T>
  std::uint64_t wrong_after(DataType type, const Shape& shape, std::uint32_t seed) const {
    REQUIRE(
        fits(plan_of(shape), Backend::host, layout_, type, shape.count, shape.block != 0 ? 1 : 2));
    std::vector<std::uint64_t> wrong(static_cast<std::size_t>(ranks_));
    const std::vector<T> expected = expected_sums<T>(shape, seed);
    on_ranks([&](int rank) {
      if (rank == ranks_ - 1) std::this_thread::sleep_for(shape.lateness);
      wrong[static_cast<std::size_t>(rank)] = run_rank<T>(rank, type, shape, seed, expected);
    });
    return std::accumulate(wrong.begin(), wrong.end(), std::uint64_t{0});
  }

  /// Reduces to shape.root `calls` times in a row, with a slow root. Counts the ranks whose call
  /// failed or whose output is wrong: the root has the sum, the others' outputs are unchanged.
  int wrong_reduces(const Shape& shape, int calls) const {
    REQUIRE(fits(plan_of(shape), Backend::host, layout_, DataType::i32, shape.count));
    std::atomic<int> wrong{0};
    on_ranks([&](int rank) {
      bool good = true;
      for (int call = 0; call < calls && good; ++call) {
        const std::vector<std::int32_t> input(shape.count, call * ranks_ + rank);
        std::vector<std::int32_t> output(shape.count, -1);
        if (rank == shape.root) std::this_thread::sleep_for(50us);
        good = reduce(rank, DataType::i32, shape, reinterpret_cast<const std::byte*>(input.data()),
                      reinterpret_cast<std::byte*>(output.data()));
        const int sum = call * ranks_ * ranks_ + ranks_ * (ranks_ - 1) / 2;
        const int expected = rank == shape.root ? sum : -1;
        good = good && std::count(output.begin(), output.end(), expected) == std::ssize(output);
      }
      if (!good) ++wrong;
    });
    return wrong;
  }

  /// Makes the line slots of all ranks look empty to lines without flags.
  void empty_lines() const {
    for (int rank = 0; rank < ranks_; ++rank) {
      std::memset(scratch(rank) + layout_.lines, 0xff, kParities * layout_.parity_bytes);
    }
  }

  /// Makes a collective of words by `run(arguments, algorithm)`, `calls` times in a row, with a
  /// slow last rank. Word i of a rank's input is word_of(seed, i), with a seed of its own. Returns
  /// the number of ranks whose call failed or whose output is wrong.
  template <class WordOf, class Run>
  int wrong_words(const Shape& shape, int calls, const WordOf& word_of, const Run& run) const {
    std::atomic<int> wrong{0};
    on_ranks([&](int rank) {
      const auto me = static_cast<std::uint64_t>(rank);
      const auto n = static_cast<std::uint64_t>(ranks_);
      std::vector<std::uint32_t> input(shape.count + shape.offset);
      std::vector<std::uint32_t> output(shape.count + shape.offset);
      bool good = true;
      for (std::uint64_t call = 0; call < static_cast<unsigned>(calls) && good; ++call) {
        const auto sent = [&](std::uint64_t from, std::uint64_t i) {
          return word_of(call * n + from, i);
        };
        for (std::uint64_t i = 0; i < shape.count; ++i) input[shape.offset + i] = sent(me, i);
        if (rank == ranks_ - 1) std::this_thread::sleep_for(shape.lateness);
        AllReduceArguments arguments = arguments_for(rank, DataType::u32, shape);
        arguments.block = 0;
        arguments.input = reinterpret_cast<const std::byte*>(input.data() + shape.offset);
        arguments.output = reinterpret_cast<std::byte*>(output.data() + shape.offset);
        arguments.share = shape.block;
        if (shape.block == 0) {  // shares of lines of 16 bytes
          const int owners = shape.root < 0 ? ranks_ : ranks_ - 1;
          arguments.share = device::divide_up(device::divide_up(4 * shape.count, std::uint64_t{16}),
                                              static_cast<std::uint64_t>(owners));
        }
        good = run(arguments, shape.algorithm);
        for (std::uint64_t i = 0; i < shape.count && good; ++i) {
          std::uint32_t expected = 0;
          if (shape.collective == Collective::all_reduce) {
            for (std::uint64_t from = 0; from < n; ++from) expected += sent(from, i);
          } else if (shape.root >= 0) {
            expected = sent(static_cast<std::uint64_t>(shape.root), i);
          } else {
            const bool exchanges = shape.collective == Collective::all_to_all;
            expected = sent(i / shape.block, i % shape.block + (exchanges ? me * shape.block : 0));
          }
          good = output[shape.offset + i] == expected;
        }
      }
      wrong += good ? 0 : 1;
    });
    return wrong;
  }

  /// Makes a collective that copies `calls` times in a row, with a slow last rank. Counts the ranks
  /// whose call failed or whose output is wrong. If `registered`, the outputs lie in the ranks'
  /// slots, where the other ranks can write them.
  int wrong_copies(const Shape& shape, int calls, bool registered) const {
    std::atomic<int> wrong{0};
    on_ranks([&](int rank) {
      const auto me = static_cast<std::uint64_t>(rank);
      std::vector<std::uint16_t> own(shape.count + shape.offset);
      auto* const slot = reinterpret_cast<std::uint16_t*>(scratch(rank) + layout_.total_bytes);
      std::uint16_t* const output = (registered ? slot : own.data()) + shape.offset;
      const bool exchanges = shape.collective == Collective::all_to_all;
      bool good = true;
      for (int call = 0; call < calls && good; ++call) {
        const auto sent = [&](std::uint64_t from, std::uint64_t i) {
          return static_cast<std::uint16_t>(static_cast<unsigned>(call) * 77 + from * 31 + i);
        };
        const auto expected = [&](std::uint64_t i) {
          if (shape.block == 0) return sent(static_cast<std::uint64_t>(shape.root), i);
          return sent(i / shape.block, i % shape.block + (exchanges ? me * shape.block : 0));
        };
        std::vector<std::uint16_t> input(exchanges || shape.block == 0 ? shape.count : shape.block);
        for (std::size_t i = 0; i < input.size(); ++i) input[i] = sent(me, i);
        std::fill_n(output, shape.count, std::uint16_t{0xeeee});
        const std::uint64_t place = exchanges ? 0 : me * shape.block;
        std::uint16_t* const from = shape.in_place ? output + place : input.data();
        const bool sends = shape.block != 0 || rank == shape.root;
        if (sends && shape.in_place) std::copy(input.begin(), input.end(), from);
        if (rank == ranks_ - 1) std::this_thread::sleep_for(shape.lateness);
        AllReduceArguments arguments = arguments_for(rank, DataType::f16, shape);
        arguments.block = 0;
        arguments.input = reinterpret_cast<const std::byte*>(from);
        arguments.output = reinterpret_cast<std::byte*>(output);
        if (registered) {
          arguments.output_offset = layout_.total_bytes + shape.offset * sizeof(std::uint16_t);
        }
        good = run_all_reduce_on_host(shape.algorithm, arguments);
        for (std::uint64_t i = 0; i < shape.count; ++i) good = good && output[i] == expected(i);
      }
      wrong += good ? 0 : 1;
    });
    return wrong;
  }

  /// Difference of the last rank's buffers in a call. A difference keeps every rank from reading in
  /// place, except that a reduce-scatter does not depend on the place of the output.
  enum class Unlike : std::uint8_t { none, input_elsewhere, input_offset, output_elsewhere };

  /// Reduces as GPUs do that read all inputs in place, once for each of `calls` in a row. Inputs
  /// change after each call, and the last rank is slow. Counts the ranks with a failed call or a
  /// wrong output. Reduce-scatters take whole rings, and alternate with all-reduces whose results
  /// pass through the output rings.
  int wrong_reads(const Shape& shape, const std::vector<Unlike>& calls) const {
    std::atomic<int> wrong{0};
    on_ranks([&](int rank) {
      bool good = true;
      for (std::size_t call = 0; call < calls.size(); ++call) {
        const Unlike unlike = rank == ranks_ - 1 ? calls[call] : Unlike::none;
        good = reads_well(rank, shape, static_cast<int>(call), unlike) && good;
        if (shape.block == 0) continue;
        Shape sums = shape;
        sums.block = 0;
        sums.collective = Collective::all_reduce;
        good = reads_well(rank, sums, static_cast<int>(call), Unlike::output_elsewhere) && good;
      }
      wrong += good ? 0 : 1;
    });
    return wrong;
  }

  /// Reduces inputs[rank] on each rank, with control_words[rank] in MXCSR, and returns the outputs
  /// by rank. Fails the test if a call fails or changes the control word.
  std::vector<std::vector<std::byte>> outputs_of(const std::vector<std::vector<std::byte>>& inputs,
                                                 const std::vector<std::uint32_t>& control_words,
                                                 DataType type, const Shape& shape) const {
    REQUIRE(fits(plan_of(shape), Backend::host, layout_, type, shape.count));
    std::vector<std::vector<std::byte>> outputs(inputs.size());
    std::atomic<int> failures{0};
    on_ranks([&](int rank) {
      const auto place = static_cast<std::size_t>(rank);
      outputs[place].resize(inputs[place].size());
      set_control_word(control_words[place]);
      const bool good = reduce(rank, type, shape, inputs[place].data(), outputs[place].data());
      if (!good || control_word() != control_words[place]) ++failures;
    });
    CHECK(failures == 0);
    return outputs;
  }

 private:
  static Plan plan_of(const Shape& shape) { return {shape.algorithm, 1, 1, 1024, 3, 2}; }
  static int element(const Shape& shape, std::uint32_t seed, int rank, std::uint64_t i) {
    if (shape.value != 0) return shape.value;
    const std::uint64_t mixed =
        (seed + static_cast<std::uint32_t>(rank) * 7 + i) * 0x9e3779b97f4a7c15u;
    return static_cast<int>((mixed >> 40) % 5);
  }

  template <class T>
  std::vector<T> expected_sums(const Shape& shape, std::uint32_t seed) const {
    std::vector<T> sums;
    for (std::uint64_t i = 0; i < shape.count; ++i) {
      int sum = 0;
      for (int rank = 0; rank < ranks_; ++rank) sum += element(shape, seed, rank, i);
      sums.push_back(static_cast<T>(static_cast<float>(sum)));
    }
    return sums;
  }

  template <class T>
  std::uint64_t run_rank(int rank, DataType type, const Shape& shape, std::uint32_t seed,
                         const std::vector<T>& expected) const {
    constexpr auto kGuard = std::byte{0x5a};
    const std::size_t bytes = shape.count * sizeof(T);
    const std::size_t begin = 64 + shape.offset * sizeof(T);
    std::vector<std::byte> input(begin + bytes + 128, kGuard);
    std::vector<std::byte> output(begin + bytes + 128, kGuard);
    const auto align = [](std::vector<std::byte>& area) {
      return area.data() + (-reinterpret_cast<std::uintptr_t>(area.data()) & 63);
    };
    std::byte* const buffer = align(output) + begin;
    std::byte* const from = shape.in_place ? buffer : align(input) + begin;
    for (std::uint64_t i = 0; i < shape.count; ++i) {
      const auto value = static_cast<T>(static_cast<float>(element(shape, seed, rank, i)));
      std::memcpy(from + i * sizeof(T), &value, sizeof(T));
    }

    // An in-place reduce-scatter writes its result over this rank's block of the input.
    const std::uint64_t first = static_cast<std::uint64_t>(rank) * shape.block;
    std::byte* const to = shape.in_place ? buffer + first * sizeof(T) : buffer;
    std::uint64_t wrong = reduce(rank, type, shape, from, to) ? 0 : 1;
    const std::uint64_t count = shape.block == 0 ? shape.count : shape.block;
    for (std::uint64_t i = 0; i < count; ++i) {
      wrong += std::memcmp(to + i * sizeof(T), &expected[first + i], sizeof(T)) != 0 ? 1 : 0;
    }
    const auto is_changed = [&](std::byte byte) { return byte != kGuard; };
    const auto begins = output.cbegin() + (buffer - output.data());
    const std::size_t used = shape.in_place ? bytes : count * sizeof(T);
    wrong += static_cast<std::uint64_t>(
        std::count_if(output.cbegin(), begins, is_changed) +
        std::count_if(begins + static_cast<std::ptrdiff_t>(used), output.cend(), is_changed));
    return wrong;
  }

  bool reads_well(int rank, const Shape& shape, int call, Unlike unlike) const {
    const auto first = static_cast<std::uint64_t>(rank) * shape.block;
    const std::uint64_t count = shape.block == 0 ? shape.count : shape.block;
    const auto sent = [&](int from, std::uint64_t i) {
      return call * 1000 + from * 77 + static_cast<std::int32_t>(i % 991);
    };
    std::vector<std::int32_t> elsewhere(2 * shape.count);
    std::uint64_t in = layout_.total_bytes;
    if (unlike == Unlike::input_offset) in += kOutputBytes / 4;
    const std::uint64_t out =
        layout_.total_bytes + (shape.in_place ? first * sizeof(std::int32_t) : kOutputBytes / 2);
    const auto at = [&](std::uint64_t offset) {
      return reinterpret_cast<std::int32_t*>(scratch(rank) + offset);
    };
    std::int32_t* const input = unlike == Unlike::input_elsewhere ? elsewhere.data() : at(in);
    std::int32_t* const output =
        unlike == Unlike::output_elsewhere ? elsewhere.data() + shape.count : at(out);
    for (std::uint64_t i = 0; i < shape.count; ++i) input[i] = sent(rank, i);
    std::fill_n(at(layout_.total_bytes + kOutputBytes / 2), shape.in_place ? 0 : count, -1);
    if (rank == ranks_ - 1) std::this_thread::sleep_for(shape.lateness);
    AllReduceArguments arguments = arguments_for(rank, DataType::i32, shape);
    arguments.input = reinterpret_cast<const std::byte*>(input);
    arguments.output = reinterpret_cast<std::byte*>(output);
    if (unlike != Unlike::input_elsewhere) arguments.input_offset = in;
    if (unlike != Unlike::output_elsewhere) arguments.output_offset = out;
    arguments.stream.reads_inputs = true;
    // The rings have room for just the chunks.
    arguments.layout.ring_bytes = std::uint64_t{2} * arguments.stream.depth *
                                  arguments.stream.chunk_bytes * static_cast<unsigned>(ranks_ - 1);
    if (shape.block != 0) {
      arguments.stream.chunk_bytes *= 2;
      arguments.stream.whole_rings = true;
    }
    arguments.wait.timeout_ns = 3'000'000'000;
    if (!StreamAllReduce<device::Thread, EmulatedOps>(arguments, GridPlace{}).run()) return false;
    if (shape.root >= 0 && shape.root != rank) return true;
    bool good = true;
    for (std::uint64_t i = 0; i < count; ++i) {
      std::int32_t sum = 0;
      for (int from = 0; from < ranks_; ++from) sum += sent(from, first + i);
      good = good && output[i] == sum;
    }
    return good;
  }

  template <class Body>
  void on_ranks(const Body& body) const {
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < ranks_; ++rank) threads.emplace_back(body, rank);
  }

  /// Returns whether the call completed and reported no failure.
  bool reduce(int rank, DataType type, const Shape& shape, const std::byte* from,
              std::byte* to) const {
    CallFailure failure{};
    AllReduceArguments arguments = arguments_for(rank, type, shape);
    arguments.input = from;
    arguments.output = to;
    arguments.failure = &failure;
    return run_all_reduce_on_host(shape.algorithm, arguments) && failure.kind == 0;
  }

  AllReduceArguments arguments_for(int rank, DataType type, const Shape& shape) const {
    const Plan plan = plan_of(shape);
    const Owners owners =
        owners_of(plan, shape.owners, shape.collective, shape.root, ranks_, std::uint64_t{1} << 30);
    const Split split = shape.block == 0
                            ? split_work(plan, Backend::host, owners.count, type, shape.count)
                            : split_blocks(plan, Backend::host, type, shape.block);
    AllReduceArguments arguments;
    arguments.count = shape.count;
    arguments.block = shape.block;
    arguments.root = shape.root;
    arguments.scratch = scratch(0);
    arguments.flat_base = scratch(0);
    arguments.stride_4g = 1;
    arguments.rank = rank;
    arguments.ranks = ranks_;
    arguments.layout = layout_;
    arguments.share = split.share;
    if (shape.collective == Collective::broadcast && shape.algorithm == Algorithm::two_shot) {
      arguments.share = share_of_broadcast(plan, ranks_, shape.count * size_of(type));
    }
    arguments.part = split.part;
    arguments.collective = shape.collective;
    arguments.stream = {plan.chunk_bytes, plan.depth, plan.lead, owners.first};
    arguments.signature = static_cast<std::uint32_t>(shape.count % 1024);
    arguments.type = type;
    arguments.op = shape.op;
    arguments.operation.average = shape.op == ReduceOp::avg;
    arguments.operation.scaled = shape.op == ReduceOp::premul_sum;
    arguments.operation.maximum = shape.op == ReduceOp::max;
    arguments.scalar_bits = 0x3bb83bb83bb83bb8u;  // no power of two in floats of 16 bits and more
    arguments.wait.timeout_ns = 20'000'000'000;
    arguments.wait.doorbell = reinterpret_cast<device::Doorbell*>(scratch(rank) + layout_.doorbell);
    return arguments;
  }

  int ranks_;
  ScratchLayout layout_;
  test::LsaMemory memory_;
  test::LsaMemory::Mapping mapping_;
};

}  // namespace oriel::kernels
