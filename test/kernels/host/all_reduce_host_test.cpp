// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "kernels/host/all_reduce_host.hpp"

#include <algorithm>
#include <cstring>
#include <random>
#include <vector>

#include <catch2/catch.hpp>

#include "oriel/device/scalar.hpp"

#include "kernels/algorithms/eager.hpp"
#include "kernels/algorithms/lines.hpp"
#include "kernels/host/all_reduce_ranks.hpp"
#include "kernels/plan/choice.hpp"
#include "support/sanitized.hpp"
#include "support/seed.hpp"

namespace oriel::kernels {
namespace {

/// Returns the bytes of the largest message of the eager algorithm.
std::uint64_t max_eager_bytes(const ScratchLayout& layout) {
  return layout.eager_source_bytes / kEagerLineBytes * kEagerPayloadBytes;
}

template <class T>
void check_counts(const Ranks& ranks, DataType type, Algorithm algorithm, std::mt19937& rng) {
  constexpr std::uint64_t kLine = kEagerPayloadBytes / sizeof(T);
  const std::uint64_t most =
      algorithm == Algorithm::eager ? max_eager_bytes(ranks.layout()) / sizeof(T) : 100'000;
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

TEST_CASE("a reduce-scatter of blocks at any alignment gives each rank the sums of its block",
          "[req:5.9][req:3.16]") {
  const std::uint64_t seed = test::test_seed();
  std::mt19937 rng(seed);
  const int count = GENERATE(2, 3, 7);
  const Algorithm algorithm = GENERATE(Algorithm::two_shot, Algorithm::stream, Algorithm::eager);
  const Ranks ranks(count);
  for (const std::uint64_t block : {1u, 7u, 64u, 1001u, 3001u}) {
    const bool is_too_long = block * count * sizeof(float) > max_eager_bytes(ranks.layout());
    if (algorithm == Algorithm::eager && is_too_long) continue;
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

TEST_CASE("a reduce-scatter in lines takes the slots of an all-reduce's second trip too",
          "[req:5.9]") {
  const Ranks ranks(3);
  const std::uint64_t payload = ranks.layout().source_bytes[1] / kLineBytes * (kLineBytes / 2);
  Shape shape{Algorithm::two_shot, 3 * (payload / 4 + 64)};
  shape.block = shape.count / 3;
  const Plan plan{Algorithm::two_shot, 1, 1, 1024, 3, 2};
  REQUIRE_FALSE(fits(plan, Backend::host, ranks.layout(), DataType::f32, shape.count));
  for (std::uint32_t call = 0; call < 4; ++call) {
    REQUIRE(ranks.wrong_after<float>(DataType::f32, shape, call) == 0);
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

TEST_CASE("a line is one cache line, and what does not fit the lines is refused", "[req:1.43]") {
  for (const int count : {2, 3, 64}) {
    const ScratchLayout layout = make_scratch_layout(Backend::host, count, 1, kScratchBytes);
    CHECK(layout.eager % kEagerLineBytes == 0);
    CHECK(layout.eager_source_bytes % kEagerLineBytes == 0);
    const std::uint64_t max_bytes = max_eager_bytes(layout);
    CHECK(max_bytes >= (count == 2 ? 8192 : 256));
    const Plan plan{Algorithm::eager, 1, 1, 0, 0, 0};
    CHECK(fits(plan, Backend::host, layout, DataType::u8, max_bytes));
    CHECK_FALSE(fits(plan, Backend::host, layout, DataType::u8, max_bytes + 1));
  }
}

TEST_CASE("packets of CPU ranks carry 8 bytes of every type", "[req:1.30]") {
  const ScratchLayout layout = make_scratch_layout(Backend::host, 3, 1, kScratchBytes);
  for (int index = 0; index < kDataTypeCount; ++index) {
    const auto type = static_cast<DataType>(index);
    INFO(name_of(type));
    for (const Algorithm algorithm : {Algorithm::one_shot, Algorithm::two_shot}) {
      const bool shared = algorithm == Algorithm::two_shot;
      const std::uint64_t max_bytes = layout.source_bytes[shared ? 1 : 0] / kLineBytes * 8;
      const std::uint64_t most = max_bytes * (shared ? 3 : 1) / size_of(type);
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
TEST_CASE("algorithms called in random order on one communicator take no stale data",
          "[req:1.30]") {
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
    counters.handshakes = counters.step = counters.line_epoch = kNearWrap;
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
  CHECK(ranks.counters(0).handshakes == 5);
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

}  // namespace
}  // namespace oriel::kernels
