// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "kernels/host/all_reduce_host.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <iterator>
#include <limits>
#include <numeric>
#include <random>
#include <thread>
#include <vector>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include <catch2/catch.hpp>

#include "oriel/device/group.hpp"
#include "oriel/device/scalar.hpp"

#include "device/lsa_memory.hpp"
#include "kernels/algorithms/eager.hpp"
#include "kernels/algorithms/family.hpp"
#include "kernels/algorithms/group_reduce_mover.hpp"
#include "kernels/algorithms/lines.hpp"
#include "kernels/algorithms/stream.hpp"
#include "kernels/plan/call_record.hpp"
#include "kernels/plan/choice.hpp"
#include "support/sanitized.hpp"
#include "support/seed.hpp"

namespace {

using namespace oriel;
using namespace oriel::kernels;
using namespace std::chrono_literals;

constexpr std::uint64_t kScratchBytes = 4 << 20;
constexpr std::uint64_t kOutputBytes = 1 << 20;  // window behind the scratch memory
constexpr Algorithm kAlgorithms[] = {Algorithm::one_shot, Algorithm::two_shot, Algorithm::stream,
                                     Algorithm::eager};
static_assert(std::size(kAlgorithms) == kAlgorithmCount);
constexpr std::uint32_t kNearWrap = std::numeric_limits<std::uint32_t>::max() - 2;

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
constexpr std::uint32_t kDefaultControl = 0x1f80;
#if defined(__x86_64__)
std::uint32_t control_word() {
  return _mm_getcsr() & ~0x3fu;
}
void set_control_word(std::uint32_t word) {
  _mm_setcsr(word);
}
#else
std::uint32_t control_word() {
  return kDefaultControl;
}
void set_control_word(std::uint32_t) {}
#endif

/// Group policy of a GPU's warp, whose threads one CPU thread plays one after the other.
struct PlayedWarp {
  static inline thread_local std::uint32_t at = 0;
  static std::uint32_t rank() { return at; }
  static std::uint32_t size() { return 32; }
};

/// Moves and reduces as a GPU's warp does, for a stream of one CPU thread.
class PlayedMover : public GroupReduceMover<std::int32_t, Family::sum, 0, PlayedWarp> {
  using Base = GroupReduceMover<std::int32_t, Family::sum, 0, PlayedWarp>;

 public:
  using Base::Base;

  void send(std::byte* slot, std::uint64_t first, std::uint64_t count) const {
    play([&] { Base::send(slot, first, count); });
  }
  void copy_out(std::uint64_t first, const std::byte* slot, std::uint64_t count) const {
    play([&] { Base::copy_out(first, slot, count); });
  }
  template <class Source, class Target>
  void reduce(const Source& source, const Target& target, int targets, std::uint64_t count) const {
    play([&] { Base::reduce(source, target, targets, count); });
  }

 private:
  template <class Body>
  static void play(const Body& body) {
    for (PlayedWarp::at = 0; PlayedWarp::at < PlayedWarp::size(); ++PlayedWarp::at) body();
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
    REQUIRE(fits(plan_of(shape), Backend::host, layout_, type, shape.count));
    std::vector<std::uint64_t> wrong(static_cast<std::size_t>(ranks_));
    const std::vector<T> expected = expected_sums<T>(shape, seed);
    on_ranks([&](int rank) {
      if (rank == ranks_ - 1) std::this_thread::sleep_for(shape.lateness);
      wrong[static_cast<std::size_t>(rank)] = play<T>(rank, type, shape, seed, expected);
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

  /// Difference of the last rank's buffers in a call that keeps every rank from reading in place.
  enum class Unlike : std::uint8_t { none, input_elsewhere, input_offset, output_elsewhere };

  /// Reduces as GPUs do that read all inputs in place, once for each of `calls` in a row. Inputs
  /// change after each call, and the last rank is slow. Counts the ranks with a failed call or a
  /// wrong output.
  int wrong_reads(const Shape& shape, const std::vector<Unlike>& calls) const {
    std::atomic<int> wrong{0};
    on_ranks([&](int rank) {
      bool good = true;
      for (std::size_t call = 0; call < calls.size(); ++call) {
        const Unlike unlike = rank == ranks_ - 1 ? calls[call] : Unlike::none;
        good = reads_well(rank, shape, static_cast<int>(call), unlike) && good;
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
  std::uint64_t play(int rank, DataType type, const Shape& shape, std::uint32_t seed,
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
    arguments.wait.timeout_ns = 3'000'000'000;
    if (!StreamAllReduce<device::Thread, PlayedMover>(arguments, GridPlace{}).run()) return false;
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
      arguments.share = share_of_broadcast(ranks_, shape.count * size_of(type));
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
    arguments.scalar_bits = 0x3bb83bb83bb83bb8u;  // in no float type a power of two
    arguments.wait.timeout_ns = 20'000'000'000;
    arguments.wait.doorbell = reinterpret_cast<device::Doorbell*>(scratch(rank) + layout_.doorbell);
    return arguments;
  }

  int ranks_;
  ScratchLayout layout_;
  test::LsaMemory memory_;
  test::LsaMemory::Mapping mapping_;
};

/// Returns the bytes of the largest message of the eager algorithm.
std::uint64_t eager_room(const ScratchLayout& layout) {
  return layout.eager_lane_bytes / kEagerLineBytes * kEagerPayloadBytes;
}

template <class T>
void check_counts(const Ranks& ranks, DataType type, Algorithm algorithm, std::mt19937& rng) {
  constexpr std::uint64_t kLine = kEagerPayloadBytes / sizeof(T);
  const std::uint64_t most =
      algorithm == Algorithm::eager ? eager_room(ranks.layout()) / sizeof(T) : 100'000;
  constexpr std::uint64_t kBlock = 8192 / sizeof(T);  // about what the algorithms stage at once
  for (const std::uint64_t wanted : {std::uint64_t{1}, kLine - 1, kLine, kLine + 1, 2 * kLine,
                                     5 * kLine + 3, kBlock - kLine, kBlock + 1, 3 * kBlock + 5}) {
    const std::uint64_t count = std::min(wanted, most);
    for (const bool in_place : {false, true}) {
      const Shape shape{algorithm, count, rng() % 64, in_place, 0us, 0};
      INFO(name_of(algorithm) << ", type " << static_cast<int>(type) << ", count " << count
                              << ", offset " << shape.offset << ", in place " << in_place);
      REQUIRE(ranks.wrong_after<T>(type, shape, static_cast<std::uint32_t>(rng())) == 0);
    }
  }
}

}  // namespace

TEST_CASE("a reduce-scatter of blocks at any alignment gives each rank the sums of its block",
          "[req:5.9][req:3.16]") {
  const std::uint64_t seed = test::test_seed();
  std::mt19937 rng(seed);
  const int count = GENERATE(2, 3, 7);
  const Algorithm algorithm = GENERATE(Algorithm::two_shot, Algorithm::stream);
  const Ranks ranks(count);
  for (const std::uint64_t block : {1u, 7u, 64u, 1001u, 3001u}) {
    for (const bool in_place : {false, true}) {
      Shape shape{algorithm, block * static_cast<unsigned>(count), rng() % 64, in_place, 0us, 0};
      shape.block = block;
      INFO(count << " ranks, " << name_of(algorithm) << ", block " << block << ", offset "
                 << shape.offset << ", in place " << in_place);
      const auto with = static_cast<std::uint32_t>(rng());
      REQUIRE(ranks.wrong_after<float>(DataType::f32, shape, with) == 0);
      REQUIRE(ranks.wrong_after<std::uint8_t>(DataType::u8, shape, with) == 0);
      REQUIRE(ranks.wrong_after<device::f16>(DataType::f16, shape, with) == 0);
    }
  }
}

TEST_CASE("reduces in a row to a slow root give it every sum, and the others nothing",
          "[req:5.8]") {
  const int count = GENERATE(2, 3, 7);
  const Ranks ranks(count);
  for (const Algorithm algorithm : kAlgorithms) {
    for (const std::uint64_t elements : {1u, 5u, 130u, 9001u}) {  // some shares are empty
      for (const Backend owners : {Backend::host, Backend::cuda}) {
        const bool is_other = elements > 1000 || owners == Backend::cuda;
        if (is_other && algorithm != Algorithm::stream) continue;
        Shape shape{algorithm, elements};
        shape.collective = Collective::reduce;
        shape.root = static_cast<int>(elements) % count;
        shape.owners = owners;
        INFO(count << " ranks, " << name_of(algorithm) << ", " << elements << " elements, the root "
                   << (owners == Backend::host ? "may own a share" : "is spared in streams"));
        REQUIRE(ranks.wrong_reduces(shape, test::repeats(40, 8)) == 0);
      }
    }
  }
}

TEST_CASE("streamed copies in a row bring every element to every rank, in place and into windows",
          "[req:5.9]") {
  const int count = GENERATE(2, 3, 7);
  const auto collective =
      GENERATE(Collective::broadcast, Collective::all_gather, Collective::all_to_all);
  const bool gathers = collective != Collective::broadcast;
  const Ranks ranks(count);
  for (const std::uint64_t elements : {1u, 63u, 130u, 1001u, 9001u}) {
    for (const int form : {0, 1, 2, 3}) {
      const bool registered = form >= 2;
      const bool in_place = form % 2 != 0 && collective != Collective::all_to_all;
      const std::uint64_t all = gathers ? elements * static_cast<unsigned>(count) : elements;
      Shape shape{Algorithm::stream, all, elements % 5, in_place, 50us};
      shape.collective = collective;
      if (gathers) shape.block = elements;
      if (!gathers) shape.root = static_cast<int>(elements) % count;
      INFO(name_of(collective) << " among " << count << " ranks, registered " << registered
                               << ", in place " << in_place << ", " << elements << " elements");
      REQUIRE(ranks.wrong_copies(shape, test::repeats(40, 8), registered) == 0);
    }
  }
}

TEST_CASE("a broadcast in lines reaches every rank from any root, at any alignment, in place",
          "[req:5.9]") {
  const int count = GENERATE(2, 3, 7);
  const Ranks ranks(count);
  for (const std::uint64_t elements : {1u, 2u, 3u, 4u, 63u, 130u, 1001u, 9001u}) {
    for (const bool in_place : {false, true}) {
      Shape shape{Algorithm::two_shot, elements, elements % 5, in_place, 50us};
      shape.collective = Collective::broadcast;
      shape.root = static_cast<int>(elements) % count;
      INFO(count << " ranks, in place " << in_place << ", " << elements << " elements");
      REQUIRE(ranks.wrong_copies(shape, test::repeats(40, 8), false) == 0);
      Shape sums{Algorithm::one_shot, std::min<std::uint64_t>(elements, 2000), elements % 5};
      REQUIRE(ranks.wrong_after<std::int32_t>(DataType::i32, sums, 5) == 0);  // shares the slots
    }
  }
}

TEST_CASE("calls that read all inputs in place give the sums, also between calls that cannot",
          "[req:5.9]") {
  const int count = GENERATE(2, 3, 7);
  const Ranks ranks(count);
  const auto collective =
      GENERATE(Collective::all_reduce, Collective::reduce_scatter, Collective::reduce);
  const bool scatters = collective == Collective::reduce_scatter;
  std::mt19937 rng(test::test_seed());
  std::vector<Ranks::Unlike> calls;
  for (int i = test::repeats(40, 12); i > 0; --i) {
    calls.push_back(rng() % 2 == 0 ? Ranks::Unlike::none : Ranks::Unlike(rng() % 4));
  }
  for (const std::uint64_t elements : {4u, 132u, 1004u, 9000u}) {
    for (const bool in_place : {false, true}) {
      const std::uint64_t all = scatters ? elements * static_cast<unsigned>(count) : elements;
      Shape shape{Algorithm::stream, all, 0, in_place, 50us};
      shape.collective = collective;
      if (scatters) shape.block = elements;
      if (collective == Collective::reduce) shape.root = static_cast<int>(elements) % count;
      INFO(name_of(collective) << " among " << count << " ranks, in place " << in_place << ", "
                               << elements << " elements");
      REQUIRE(ranks.wrong_reads(shape, calls) == 0);
    }
  }
}

TEST_CASE("blocks in lines reach every rank, in place, at any alignment and after reductions",
          "[req:5.9]") {
  const int count = GENERATE(2, 3, 7);
  const auto collective = GENERATE(Collective::all_gather, Collective::all_to_all);
  const Ranks ranks(count);
  for (const std::uint64_t elements : {1u, 2u, 3u, 4u, 63u, 130u, 1001u, 9001u}) {
    for (const bool in_place : {false, true}) {
      Shape shape{Algorithm::one_shot, elements * static_cast<unsigned>(count), elements % 5,
                  in_place, 50us};
      shape.collective = collective;
      shape.block = elements;
      INFO(name_of(collective) << " among " << count << " ranks, in place " << in_place << ", "
                               << elements << " elements");
      REQUIRE(ranks.wrong_copies(shape, test::repeats(40, 8), false) == 0);
      Shape sums{Algorithm::one_shot, std::min<std::uint64_t>(elements, 2000), elements % 5};
      REQUIRE(ranks.wrong_after<std::int32_t>(DataType::i32, sums, 5) == 0);  // shares the slots
    }
  }
}

TEST_CASE("every algorithm takes every count from and to every alignment", "[req:1.30][req:1.43]") {
  const std::uint64_t seed = test::test_seed();
  std::mt19937 rng(seed);
  for (const int count : {2, 3, 7}) {
    const Ranks ranks(count);
    INFO(count << " ranks");
    for (const Algorithm algorithm : kAlgorithms) {
      check_counts<std::uint8_t>(ranks, DataType::u8, algorithm, rng);
      check_counts<device::f16>(ranks, DataType::f16, algorithm, rng);
      check_counts<float>(ranks, DataType::f32, algorithm, rng);
      check_counts<std::int64_t>(ranks, DataType::i64, algorithm, rng);
    }
  }
}

TEST_CASE("a line is one cache line, and what does not fit the lanes is refused", "[req:1.43]") {
  for (const int count : {2, 3, 64}) {
    const ScratchLayout layout = make_scratch_layout(Backend::host, count, 1, kScratchBytes);
    CHECK(layout.eager % kEagerLineBytes == 0);
    CHECK(layout.eager_lane_bytes % kEagerLineBytes == 0);
    const std::uint64_t room = eager_room(layout);
    CHECK(room >= (count == 2 ? 8192 : 256));
    const Plan plan{Algorithm::eager, 1, 1, 0, 0, 0};
    CHECK(fits(plan, Backend::host, layout, DataType::u8, room));
    CHECK_FALSE(fits(plan, Backend::host, layout, DataType::u8, room + 1));
  }
}

TEST_CASE("packets of CPU ranks carry 8 bytes of every type", "[req:1.30]") {
  const ScratchLayout layout = make_scratch_layout(Backend::host, 3, 1, kScratchBytes);
  for (int index = 0; index < kDataTypeCount; ++index) {
    const auto type = static_cast<DataType>(index);
    INFO(name_of(type));
    for (const Algorithm algorithm : {Algorithm::one_shot, Algorithm::two_shot}) {
      const bool shared = algorithm == Algorithm::two_shot;
      const std::uint64_t room = layout.lane_bytes[shared ? 1 : 0] / kLineBytes * 8;
      const std::uint64_t most = room * (shared ? 3 : 1) / size_of(type);
      const Plan plan{algorithm, 1, 1, 0, 0, 0};
      CHECK(fits(plan, Backend::host, layout, type, most));
      CHECK_FALSE(fits(plan, Backend::host, layout, type, most + 1));
    }
    const Plan two_shot{Algorithm::two_shot, 1, 1, 0, 0, 0};
    const std::uint64_t count = 8 * 31 / size_of(type);  // 31 packets: 11 for each of 3 ranks
    CHECK(split_work(two_shot, Backend::host, 3, type, count).share == 11);
  }
}

#if defined(__x86_64__)
// Returns random bit patterns, half of them subnormal numbers.
std::vector<std::byte> awkward_floats(DataType type, std::uint64_t count, std::mt19937& rng) {
  const std::size_t element = size_of(type);
  std::vector<std::byte> bytes(count * element);
  for (std::uint64_t i = 0; i < count; ++i) {
    std::uint64_t bits = rng() | static_cast<std::uint64_t>(rng()) << 32;
    const int fraction_bits = type == DataType::f64 ? 52 : type == DataType::f32 ? 23 : 7;
    if (i % 2 == 0) bits &= (std::uint64_t{1} << fraction_bits) - 1;
    std::memcpy(bytes.data() + i * element, &bits, element);
  }
  return bytes;
}

TEST_CASE("the bits are the same whatever the float modes of a rank", "[req:1.29][req:1.30]") {
  const std::uint64_t seed = test::test_seed();
  std::mt19937 rng(seed);
  constexpr std::uint32_t kModes[] = {
      kDefaultControl | 0x8040,  // flush to zero, denormals are zero
      kDefaultControl | 0x6000,  // round toward zero
      kDefaultControl | 0x2000,  // round down
      0,                         // all exceptions unmasked
  };
  constexpr ReduceOp kOps[] = {ReduceOp::sum, ReduceOp::prod, ReduceOp::max, ReduceOp::avg,
                               ReduceOp::premul_sum};
  for (const int count : {2, 3}) {
    const Ranks ranks(count);
    const std::vector<std::uint32_t> plain(static_cast<std::size_t>(count), kDefaultControl);
    for (const Algorithm algorithm : kAlgorithms) {
      for (const DataType type : {DataType::f32, DataType::f64, DataType::bf16, DataType::f16}) {
        for (const ReduceOp op : kOps) {
          Shape shape{algorithm, 1 + rng() % 300, 0, false, 0us, 0};
          if (rng() % 2 == 0) shape.count = 1 + rng() % 8;
          shape.op = op;
          std::vector<std::vector<std::byte>> inputs;
          for (int rank = 0; rank < count; ++rank) {
            inputs.push_back(awkward_floats(type, shape.count, rng));
          }
          const auto expected = ranks.outputs_of(inputs, plain, type, shape);
          auto words = plain;
          words.back() = kModes[rng() % std::size(kModes)];
          INFO(name_of(algorithm) << ", " << name_of(type) << ", op " << static_cast<int>(op)
                                  << ", count " << shape.count << ", modes " << words.back());
          const auto outputs = ranks.outputs_of(inputs, words, type, shape);
          for (const auto& output : outputs) REQUIRE(output == expected.front());
        }
      }
    }
  }
}
#endif

// Runs all algorithms in random order: stale data of one must not look like a line of another. All
// elements of a call are the same small integer, as flags of a new communicator are. Ranks that
// wait for the late rank see the stale data.
TEST_CASE("the algorithms of CPU ranks share a communicator", "[req:1.30]") {
  const std::uint64_t seed = test::test_seed();
  std::mt19937 rng(seed);
  for (int round = 0; round < test::repeats(60, 3); ++round) {
    const Ranks ranks(2 + round % 2 * 3);
    for (int call = 0; call < 8; ++call) {
      const Shape shape{
          kAlgorithms[rng() % kAlgorithmCount], 1 + rng() % 1500, rng() % 64, rng() % 2 == 0, 300us,
          1 + static_cast<int>(rng() % 3)};
      INFO("round " << round << ", call " << call << ", " << name_of(shape.algorithm) << ", count "
                    << shape.count);
      REQUIRE(ranks.wrong_after<std::int32_t>(DataType::i32, shape,
                                              static_cast<std::uint32_t>(rng())) == 0);
    }
  }
}

TEST_CASE("calls go on where the counts of calls wrap") {
  // While they wait for the late rank, the others see stale data of earlier calls.
  const Ranks ranks(3);
  for (int rank = 0; rank < 3; ++rank) {
    CtaCounters& counters = ranks.counters(rank);
    counters.greeting = counters.step = counters.line_epoch = kNearWrap;
    counters.chunk = (1u << 31) - 3;  // restarts from 0 at 2^31
    counters.eager_calls = kNearWrap;
    for (std::uint64_t source = 0; source < 3; ++source) {
      std::memcpy(ranks.scratch(rank) + ranks.layout().flags + source * kSectorBytes, &kNearWrap,
                  4);
    }
  }
  std::uint32_t seed = 0;
  for (const Algorithm algorithm : kAlgorithms) {
    for (std::uint64_t call = 0; call < 8; ++call) {
      const Shape shape{algorithm, 300 + call * 900, 0, false, 3ms, 0};
      INFO(name_of(algorithm) << ", call " << call);
      REQUIRE(ranks.wrong_after<float>(DataType::f32, shape, ++seed) == 0);
    }
  }
  CHECK(ranks.counters(0).greeting == 5);
  CHECK(ranks.counters(0).chunk < 100);
  CHECK(ranks.counters(0).line_epoch == 13);
  CHECK(ranks.counters(0).eager_calls == std::uint64_t{kNearWrap} + 8);
}

// Sends a long message, short ones across the wrap of the call count, and a long one again. The
// lines of the last message lie where stale lines of the first would still be.
TEST_CASE("lines of 2^32 calls ago do not look fresh", "[req:1.30]") {
  for (const Algorithm algorithm : {Algorithm::one_shot, Algorithm::two_shot}) {
    for (const std::uint32_t start : {5u, 6u, 0x7ffffff5u}) {
      INFO(name_of(algorithm) << " from call " << start);
      const Ranks ranks(3);
      std::uint32_t seed = 0;
      const auto call = [&](std::uint32_t epoch, std::uint64_t count) {
        for (int rank = 0; rank < 3; ++rank) ranks.counters(rank).line_epoch = epoch;
        const Shape shape{algorithm, count, 0, false, 3ms, 0};
        return ranks.wrong_after<float>(DataType::f32, shape, ++seed);
      };
      REQUIRE(call(start, 3000) == 0);
      for (std::uint32_t i = 1; i <= 4; ++i) {  // short messages around each sweep
        const std::uint32_t due = (start / kSweepEpochs + i) * kSweepEpochs;
        for (std::uint32_t epoch = due - 3; epoch != due + 2; ++epoch) {
          REQUIRE(call(epoch, 2) == 0);
        }
      }
      REQUIRE(call(start, 3000) == 0);
    }
  }
}

TEST_CASE("a flag differs from the one before in the same slot") {
  const std::uint32_t last = std::numeric_limits<std::uint32_t>::max();
  for (const std::uint32_t epoch : {0u, 1u, last / 2 - 2, last / 2 - 1, last / 2, last / 2 + 1,
                                    last - 3, last - 2, last - 1, last}) {
    INFO("epoch " << epoch);
    CHECK(flag_of(epoch) != 0);
    CHECK(flag_of(epoch) != ~0u);
    CHECK(flag_of(epoch) != flag_of(epoch + 2));
  }
}
