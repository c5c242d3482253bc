// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <cstring>
#include <random>

#include <catch2/catch.hpp>

#include "kernels/algorithms/one_shot.hpp"
#include "kernels/algorithms/one_shot_blocks.hpp"
#include "kernels/algorithms/two_shot.hpp"
#include "kernels/algorithms/two_shot_broadcast.hpp"
#include "kernels/host/all_reduce_ranks.hpp"
#include "support/sanitized.hpp"
#include "support/seed.hpp"

/// Tests escaped lines, which GPUs use, with the algorithms of GPUs on threads of a CPU.
namespace oriel::kernels {
namespace {

using Line = EscapedLine<std::uint32_t>;
using device::Thread;

/// Returns a word that often is all ones, as an empty slot is, or the mark.
std::uint32_t word_of(std::uint64_t seed, std::uint64_t i) {
  std::uint64_t mixed = (seed * 0x9e3779b97f4a7c15u + i + 1) * 0xbf58476d1ce4e5b9u;
  mixed ^= mixed >> 31;
  switch (mixed % 8) {
    case 0:
      return ~0u;
    case 1:
      return Line::kMark;
    case 2:
      return Line::kMark - 1;
    default:
      return static_cast<std::uint32_t>(mixed >> 16);
  }
}

bool run(const AllReduceArguments& arguments, Algorithm algorithm) {
  switch (arguments.collective) {
    case Collective::all_gather:
      return one_shot_blocks<Line, 0, Collective::all_gather, Thread>(arguments, {});
    case Collective::all_to_all:
      return one_shot_blocks<Line, 0, Collective::all_to_all, Thread>(arguments, {});
    case Collective::broadcast:
      return two_shot_broadcast<Line, 0, Thread>(arguments, {});
    default:
      return algorithm == Algorithm::one_shot
                 ? one_shot<std::uint32_t, Family::sum, 0, Line, Thread>(arguments, {})
                 : two_shot<std::uint32_t, Family::sum, 0, Line, Thread>(arguments, {});
  }
}

TEST_CASE("escaped lines carry words that look like empty slots, between sums and copies",
          "[req:5.8][req:5.9]") {
  // A receiver empties slots by plain stores. On GPUs the ends of kernels order these stores before
  // later lines; calls of CPU threads do not.
  if (test::kThreadSanitized) {
    WARN("left out under the thread sanitizer");
    return;
  }
  const int count = GENERATE(2, 3, 7);
  const auto n = static_cast<std::uint64_t>(count);
  const Ranks ranks(count);
  ranks.empty_lines();
  for (const std::uint64_t elements : {1u, 4u, 7u, 130u, 1001u}) {
    for (const auto collective : {Collective::all_gather, Collective::all_reduce,
                                  Collective::broadcast, Collective::all_to_all}) {
      const bool has_blocks =
          collective == Collective::all_gather || collective == Collective::all_to_all;
      for (const Algorithm algorithm : {Algorithm::one_shot, Algorithm::two_shot}) {
        if (algorithm == Algorithm::two_shot && collective != Collective::all_reduce) continue;
        Shape shape{algorithm, has_blocks ? elements * n : elements, elements % 3, false, 50us};
        shape.collective = collective;
        if (has_blocks) shape.block = elements;
        if (collective == Collective::broadcast) shape.root = static_cast<int>(elements) % count;
        INFO(name_of(collective) << " among " << count << " ranks, " << elements << " elements");
        REQUIRE(ranks.wrong_words(shape, test::repeats(20, 5), word_of, run) == 0);
      }
    }
  }
}

TEST_CASE("an escaped line holds any bits, and has a note if a word looks empty or like the mark",
          "[req:5.9]") {
  std::mt19937_64 rng(test::test_seed());
  for (int round = 0; round < 10000; ++round) {
    Payload<std::uint32_t, 16> payload;
    bool has_note = false;
    for (auto& word : payload.element) {
      word = word_of(rng(), 0);
      has_note = has_note || word == ~0u || word == Line::kMark;
    }
    auto line = Line::encode(payload);
    REQUIRE(Line::arrived(line.raw, {}));
    REQUIRE(Line::has_note(line.raw) == has_note);
    REQUIRE((line.note != 0) == has_note);
    Line::restore(line.raw, line.note);
    const auto restored = Line::payload(line.raw);
    REQUIRE(std::memcmp(&restored, &payload, sizeof payload) == 0);
  }
}

}  // namespace
}  // namespace oriel::kernels
