// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "window/mapping/slot_space.hpp"

#include <algorithm>
#include <memory>
#include <random>
#include <thread>

#include <catch2/catch.hpp>

#include "support/seed.hpp"
#include "window/mapping/flat_space.hpp"
#include "window/memory/sizes.hpp"

namespace oriel::window {
namespace {

constexpr std::size_t kSlot = kSlotUnitBytes;

using Pass = SlotSpace::Pass;
using Kind = SlotSpace::Proposal::Kind;

std::size_t propose(SlotSpace& space, SlotSpace::Token token, std::size_t bytes,
                    std::size_t floor = 0) {
  const auto place = space.propose(token, bytes, floor, Pass::eager);
  REQUIRE(place.ok());
  REQUIRE(place->kind == Kind::held);
  return place->offset;
}

SlotSpace::Proposal ask(SlotSpace& space, SlotSpace::Token token, std::size_t bytes, Pass pass) {
  const auto place = space.propose(token, bytes, 0, pass);
  REQUIRE(place.ok());
  return *place;
}

TEST_CASE("sizes and floors are rounded, a new proposal replaces the last, a kept one stays",
          "[req:1.15][req:1.19]") {
  SlotSpace space(kSlot, kPage);
  CHECK(propose(space, {1, 1}, 100) == 0);
  REQUIRE(space.keep({1, 1}).ok());
  CHECK(propose(space, {1, 2}, kPage, 7 * kPage + 1) == 8 * kPage);
  CHECK(propose(space, {1, 2}, kPage) == kPage);
  CHECK(propose(space, {1, 3}, 9 * kPage) == 2 * kPage);
  CHECK(propose(space, {1, 4}, 2 * kMiB) == 2 * kMiB);  // allows huge pages on the host
  space.drop({1, 1});                                   // no effect: the place is kept
  CHECK(space.taken_bytes() == kPage);
  space.release(0, 100);
  CHECK(space.taken_bytes() == 0);
}

TEST_CASE("where two agreements meet, the lower token waits and the higher one moves on",
          "[req:1.15]") {
  SlotSpace space(8 * kPage, kPage);
  const SlotSpace::Token low{1, 5}, high{2, 1};
  CHECK(ask(space, high, 3 * kPage, Pass::eager) == SlotSpace::Proposal{Kind::held, 0});
  CHECK(ask(space, low, 2 * kPage, Pass::eager) == SlotSpace::Proposal{Kind::waits, 0});
  CHECK_FALSE(space.keep(low).ok());
  // The higher token's next proposal avoids the range that the lower token wants.
  CHECK(ask(space, high, 3 * kPage, Pass::eager) == SlotSpace::Proposal{Kind::held, 2 * kPage});
  CHECK(ask(space, low, 2 * kPage, Pass::eager) == SlotSpace::Proposal{Kind::held, 0});
  // A waiting proposal waits for the lower token, and holds nothing while it waits.
  CHECK(ask(space, high, 3 * kPage, Pass::waiting) == SlotSpace::Proposal{Kind::waits, 0});
  CHECK(ask(space, low, 3 * kPage, Pass::waiting) == SlotSpace::Proposal{Kind::held, 0});
  // A waiting proposal fails at the slot's end only because of kept places.
  CHECK(ask(space, high, 6 * kPage, Pass::eager).kind == Kind::none);
  CHECK(ask(space, high, 6 * kPage, Pass::waiting).kind == Kind::waits);
  REQUIRE(space.keep(low).ok());
  CHECK(ask(space, high, 6 * kPage, Pass::waiting).kind == Kind::none);
  CHECK(space.taken_bytes() == 3 * kPage);
}

TEST_CASE("a slot refuses what does not fit and says what to change", "[req:1.38]") {
  SlotSpace space(kSlot, kPage);
  REQUIRE_FALSE(space.propose({1, 1}, 0, 0, Pass::eager).ok());
  REQUIRE_FALSE(space.propose({1, 1}, kSlot + 1, 0, Pass::eager).ok());
  REQUIRE_FALSE(space.propose({1, 1}, kPage, kSlot + 1, Pass::eager).ok());
  CHECK(space.propose({1, 1}, kPage, kSlot, Pass::eager)->kind == Kind::none);
  CHECK(propose(space, {1, 1}, kSlot) == 0);
  REQUIRE(space.keep({1, 1}).ok());
  CHECK(ask(space, {1, 2}, kPage, Pass::eager).kind == Kind::none);
  CHECK(ask(space, {1, 2}, kPage, Pass::waiting).kind == Kind::none);
  const Error full = space.out_of_space(kPage);
  CHECK(full.code() == ErrorCode::invalid_usage);
  CHECK(full.message().find("4294967296 of the 4294967296 bytes") != std::string::npos);
  CHECK(full.hint().find("ORIEL_BIG_SIZE") != std::string::npos);
  CHECK(space.keep({1, 2}).error().code() == ErrorCode::internal);
  CHECK_FALSE(space.propose({1, 1}, kPage, 0, Pass::eager).ok());  // agreement {1, 1} has ended
}

TEST_CASE("counts follow a plain model through random keeps and releases", "[req:1.15]") {
  const std::uint64_t seed = test::test_seed();
  std::mt19937_64 random(seed);
  constexpr std::size_t kPages = 512;  // 2 MiB, the alignment of the taken rest
  SlotSpace space(kSlot, kPage);
  std::vector<int> model(kPages, 0);
  // Takes the slot beyond the model's pages, so that proposals stay inside the model.
  REQUIRE(propose(space, {0, 0}, kSlot - kPages * kPage, kPages * kPage) == kPages * kPage);
  REQUIRE(space.keep({0, 0}).ok());
  std::uint64_t sequence = 0;
  for (int step = 0; step < 5000; ++step) {
    const std::size_t first = random() % kPages;
    const std::size_t pages = 1 + random() % 40;
    if (random() % 2 == 0) {
      const SlotSpace::Token token{1, ++sequence};
      const auto place = space.propose(token, pages * kPage, first * kPage, Pass::eager);
      REQUIRE(place.ok());
      std::size_t expected = first;
      while (expected + pages <= kPages &&
             std::any_of(model.begin() + static_cast<std::ptrdiff_t>(expected),
                         model.begin() + static_cast<std::ptrdiff_t>(expected + pages),
                         [](int keepers) { return keepers > 0; })) {
        ++expected;
      }
      REQUIRE((place->kind == Kind::held) == (expected + pages <= kPages));
      if (place->kind != Kind::held) continue;
      REQUIRE(place->offset == expected * kPage);
      const int keepers = 1 + static_cast<int>(random() % 3);
      for (int i = 0; i < keepers; ++i) REQUIRE(space.keep(token).ok());
      for (std::size_t p = expected; p < expected + pages; ++p) model[p] = keepers;
    } else {
      for (std::size_t p = first; p < std::min(first + pages, kPages); ++p) {
        model[p] = std::max(model[p] - 1, 0);
      }
      space.release(first * kPage, (std::min(first + pages, kPages) - first) * kPage);
    }
    const auto taken = std::count_if(model.begin(), model.end(), [](int k) { return k > 0; });
    REQUIRE(space.taken_bytes() == kSlot - (kPages - static_cast<std::size_t>(taken)) * kPage);
  }
}

TEST_CASE("agreements of several threads on one slot never share a place", "[req:1.15]") {
  SlotSpace space(kSlot, kPage);
  std::vector<std::thread> threads;
  std::vector<int> collisions(4, 0);
  std::vector<std::atomic<int>> owner(1024);
  for (std::size_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (std::uint64_t i = 0; i < 500; ++i) {
        const SlotSpace::Token token{t, i};
        auto place = space.propose(token, 2 * kPage, 0, Pass::eager);
        while (place.ok() && place->kind == Kind::waits) {
          std::this_thread::yield();
          place = space.propose(token, 2 * kPage, 0, Pass::eager);
        }
        if (!place.ok() || !space.keep(token).ok()) {
          ++collisions[t];
          continue;
        }
        auto& mine = owner[place->offset / kPage];
        if (mine.exchange(1) != 0) ++collisions[t];
        mine.store(0);
        space.release(place->offset, 2 * kPage);
      }
    });
  }
  for (auto& thread : threads) thread.join();
  CHECK(collisions == std::vector<int>(4, 0));
  CHECK(space.taken_bytes() == 0);
}

}  // namespace
}  // namespace oriel::window
