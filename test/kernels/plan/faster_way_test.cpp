// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "kernels/plan/faster_way.hpp"

#include <cstdint>

#include <catch2/catch.hpp>

namespace oriel::kernels {
namespace {

constexpr std::uint64_t kBytes = 1 << 20;

/// Counts the reads among `messages`, if a read takes `read_ns` and slots take `slots_ns`.
int count_reads(FasterWay& way, int messages, std::uint64_t read_ns, std::uint64_t slots_ns) {
  int reads = 0;
  for (int i = 0; i < messages; ++i) {
    const bool is_read = way.reads_next();
    reads += is_read ? 1 : 0;
    way.note(is_read, is_read ? read_ns : slots_ns, kBytes);
  }
  return reads;
}

}  // namespace

TEST_CASE("the faster of two ways carries all messages but a few, also once it has changed",
          "[req:5.9]") {
  constexpr int kTrial = FasterWay::kTrial;
  FasterWay way;
  // Both ways take turns before both have a mean time. The first message of each is not counted,
  // since it may touch cold memory.
  for (const std::uint64_t cold : {10, 1}) {
    CHECK(way.reads_next());
    way.note(true, 50'000 * cold, kBytes);
    CHECK_FALSE(way.reads_next());
    way.note(false, 100'000 * cold, kBytes);
  }
  CHECK(count_reads(way, 10 * kTrial, 50'000, 100'000) == 10 * kTrial - 10);
  // Changes the machine. The slower current way is noticed after a few messages, a faster other way
  // after a few trials.
  static_cast<void>(count_reads(way, 8 * kTrial, 300'000, 100'000));
  CHECK(count_reads(way, 10 * kTrial, 300'000, 100'000) == 10);
  static_cast<void>(count_reads(way, 20 * kTrial, 20'000, 100'000));
  CHECK(count_reads(way, 10 * kTrial, 20'000, 100'000) == 10 * kTrial - 10);
}

TEST_CASE("one message that was interrupted does not change the way", "[req:5.9]") {
  FasterWay way;
  static_cast<void>(count_reads(way, 3 * static_cast<int>(FasterWay::kTrial), 50'000, 100'000));
  REQUIRE(way.reads_next());
  way.note(true, 1'000'000'000, kBytes);
  CHECK(way.reads_next());
}

}  // namespace oriel::kernels
