// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <memory>
#include <random>
#include <thread>

#include <catch2/catch.hpp>

#include "window/flat_space.hpp"

namespace oriel::window {
namespace {

constexpr std::size_t kPage = 4096;
constexpr std::size_t kMiB = std::size_t{1} << 20;
constexpr std::size_t kSlot = kSlotUnitBytes;

std::size_t propose(SlotSpace& space, SlotSpace::Token token, std::size_t bytes,
                    std::size_t floor = 0) {
  Result<std::size_t> place = space.propose(token, bytes, floor);
  REQUIRE(place.ok());
  return *place;
}

TEST_CASE("1.15 a place is the first that is free after the floor") {
  SlotSpace space(kSlot, kPage);
  CHECK(propose(space, {1, 1}, 100) == 0);
  REQUIRE(space.keep({1, 1}).ok());
  CHECK(propose(space, {1, 2}, kPage) == kPage);
  CHECK(propose(space, {1, 3}, kPage) == 2 * kPage);  // what {1, 2} holds is not free
  CHECK(propose(space, {1, 2}, kPage, 7 * kPage + 1) == 8 * kPage);  // moves the hold
  CHECK(propose(space, {1, 4}, kPage) == kPage);
  CHECK(space.taken_bytes() == kPage);
  CHECK(space.held_bytes() == 3 * kPage);
  space.drop({1, 2});
  space.drop({1, 3});
  space.drop({1, 4});
  space.drop({1, 1});  // kept: no effect
  CHECK(space.held_bytes() == 0);
  CHECK(space.taken_bytes() == kPage);
  space.release(0, 100);
  CHECK(space.taken_bytes() == 0);
}

TEST_CASE("1.19 places from 2 MiB up let the host map huge pages") {
  SlotSpace space(kSlot, kPage);
  CHECK(propose(space, {1, 1}, kPage) == 0);
  CHECK(propose(space, {1, 2}, 2 * kMiB) == 2 * kMiB);
  CHECK(propose(space, {1, 3}, kMiB) == kPage);
}

TEST_CASE("1.15 ranks of one process share one place and count it") {
  SlotSpace space(kSlot, kPage);
  for (int rank = 0; rank < 4; ++rank) CHECK(propose(space, {1, 1}, 3 * kPage) == 0);
  for (int rank = 0; rank < 4; ++rank) REQUIRE(space.keep({1, 1}).ok());
  for (int rank = 0; rank < 3; ++rank) space.release(0, 3 * kPage);
  CHECK(space.taken_bytes() == 3 * kPage);
  space.release(kPage, kPage);  // the last rank gives it back in two parts
  CHECK(space.taken_bytes() == 2 * kPage);
  CHECK(propose(space, {1, 2}, kPage) == kPage);
  space.drop({1, 2});
  space.release(0, kPage);
  space.release(2 * kPage, kPage);
  CHECK(space.taken_bytes() == 0);
}

TEST_CASE("1.38 a slot refuses what does not fit and says what to change") {
  SlotSpace space(kSlot, kPage);
  REQUIRE_FALSE(space.propose({1, 1}, 0, 0).ok());
  REQUIRE_FALSE(space.propose({1, 1}, kSlot + 1, 0).ok());
  REQUIRE_FALSE(space.propose({1, 1}, kPage, kSlot + 1).ok());
  REQUIRE_FALSE(space.propose({1, 1}, kPage, kSlot).ok());
  CHECK(propose(space, {1, 1}, kSlot) == 0);
  const Result<std::size_t> full = space.propose({1, 2}, kPage, 0);
  REQUIRE_FALSE(full.ok());
  CHECK(full.error().code() == ErrorCode::invalid_usage);
  CHECK(full.error().hint().find("ORIEL_BIG_SIZE") != std::string::npos);
  CHECK(space.keep({1, 2}).error().code() == ErrorCode::internal);
  REQUIRE(space.keep({1, 1}).ok());
  CHECK_FALSE(space.propose({1, 1}, kPage, 0).ok());  // that agreement has ended
}

/// A team of processes, each with its own view of the slot. Agreements run as the protocol runs
/// them, except that their rounds are interleaved at random.
class Simulation {
 public:
  Simulation(std::size_t processes, std::mt19937_64& random) : random_(random), live_(processes) {
    for (std::size_t p = 0; p < processes; ++p) {
      spaces_.push_back(std::make_unique<SlotSpace>(kSlot, kPage));
    }
  }

  struct Agreement {
    SlotSpace::Token token;
    std::size_t bytes;
    std::size_t floor = 0;
    int rounds = 0;
    bool done = false;
  };

  /// One round of one agreement.
  void advance(Agreement& agreement) {
    std::vector<std::size_t> places;
    for (auto& space : spaces_) {
      places.push_back(propose(*space, agreement.token, agreement.bytes, agreement.floor));
    }
    const auto [low, high] = std::minmax_element(places.begin(), places.end());
    agreement.floor = *high;
    ++agreement.rounds;
    if (*low != *high) return;
    agreement.done = true;
    for (std::size_t p = 0; p < spaces_.size(); ++p) {
      REQUIRE(spaces_[p]->keep(agreement.token).ok());
      for (const auto& [begin, end] : live_[p]) {  // nothing that is in use was handed out again
        REQUIRE((agreement.floor + agreement.bytes <= begin || agreement.floor >= end));
      }
      live_[p].emplace_back(agreement.floor, agreement.floor + agreement.bytes);
    }
  }

  void release_one(std::size_t p) {
    if (live_[p].empty()) return;
    const std::size_t which = random_() % live_[p].size();
    const auto [begin, end] = live_[p][which];
    spaces_[p]->release(begin, end - begin);
    live_[p].erase(live_[p].begin() + static_cast<std::ptrdiff_t>(which));
  }

  std::size_t live(std::size_t p) const { return live_[p].size(); }
  SlotSpace& space(std::size_t p) { return *spaces_[p]; }
  std::size_t processes() const { return spaces_.size(); }

 private:
  std::mt19937_64& random_;
  std::vector<std::unique_ptr<SlotSpace>> spaces_;
  std::vector<std::vector<std::pair<std::size_t, std::size_t>>> live_;
};

TEST_CASE("1.15 1.21 offsets stay agreed when ranks release in any order") {
  const auto seed = std::random_device{}();
  CAPTURE(seed);
  std::mt19937_64 random(seed);
  Simulation team(4, random);
  std::uint64_t sequence = 0;
  int most_rounds = 0;
  std::size_t highest = 0;
  for (int cycle = 0; cycle < 2500; ++cycle) {
    // Up to three agreements at once (several communicators of the team), 10,000 windows in all.
    std::vector<Simulation::Agreement> running;
    for (int i = 0; i < 4; ++i) {
      const std::size_t bytes =
          random() % 4 == 0 ? (1 + random() % 8) * 2 * kMiB : (1 + random() % 64) * kPage;
      running.push_back({{random() % 3, ++sequence}, bytes});
    }
    while (std::any_of(running.begin(), running.end(), [](auto& a) { return !a.done; })) {
      auto& pick = running[random() % running.size()];
      if (!pick.done) team.advance(pick);
      if (random() % 4 == 0) team.release_one(random() % team.processes());
    }
    for (const auto& agreement : running) {
      most_rounds = std::max(most_rounds, agreement.rounds);
      highest = std::max(highest, agreement.floor + agreement.bytes);
    }
    for (std::size_t p = 0; p < team.processes(); ++p) {
      while (team.live(p) > 40) team.release_one(p);
    }
  }
  // 44 live windows of 16 MiB at most on each rank fill 704 MiB; what ranks that lag behind and
  // rounding cost must stay within a small multiple of it.
  CHECK(highest < 4 * 704 * kMiB);
  CHECK(most_rounds < 100);
  for (std::size_t p = 0; p < team.processes(); ++p) {
    while (team.live(p) > 0) team.release_one(p);
    CHECK(team.space(p).taken_bytes() == 0);
    CHECK(team.space(p).held_bytes() == 0);
    CHECK(propose(team.space(p), {9, 9}, kSlot) == 0);
  }
}

TEST_CASE("1.15 counts follow a plain model through random keeps and releases") {
  const auto seed = std::random_device{}();
  CAPTURE(seed);
  std::mt19937_64 random(seed);
  constexpr std::size_t kPages = 512;  // 2 MiB: where the rest of the slot may begin
  SlotSpace space(kSlot, kPage);
  std::vector<int> model(kPages, 0);
  // The slot beyond the model's pages is taken, so that proposals stay inside.
  REQUIRE(propose(space, {0, 0}, kSlot - kPages * kPage, kPages * kPage) == kPages * kPage);
  REQUIRE(space.keep({0, 0}).ok());
  std::uint64_t sequence = 0;
  for (int step = 0; step < 5000; ++step) {
    const std::size_t first = random() % kPages;
    const std::size_t pages = 1 + random() % 40;
    if (random() % 2 == 0) {
      const SlotSpace::Token token{1, ++sequence};
      const Result<std::size_t> place = space.propose(token, pages * kPage, first * kPage);
      std::size_t expected = first;
      while (expected + pages <= kPages &&
             std::any_of(model.begin() + static_cast<std::ptrdiff_t>(expected),
                         model.begin() + static_cast<std::ptrdiff_t>(expected + pages),
                         [](int keepers) { return keepers > 0; })) {
        ++expected;
      }
      REQUIRE(place.ok() == (expected + pages <= kPages));
      if (!place.ok()) continue;
      REQUIRE(*place == expected * kPage);
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

TEST_CASE("1.15 agreements of several threads on one slot never share a place") {
  SlotSpace space(kSlot, kPage);
  std::vector<std::thread> threads;
  std::vector<int> collisions(4, 0);
  std::vector<std::atomic<int>> owner(1024);
  for (std::size_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (std::uint64_t i = 0; i < 500; ++i) {
        const SlotSpace::Token token{t, i};
        const Result<std::size_t> place = space.propose(token, 2 * kPage, 0);
        if (!place.ok() || !space.keep(token).ok()) {
          ++collisions[t];
          continue;
        }
        auto& mine = owner[*place / kPage];
        if (mine.exchange(1) != 0) ++collisions[t];
        mine.store(0);
        space.release(*place, 2 * kPage);
      }
    });
  }
  for (auto& thread : threads) thread.join();
  CHECK(collisions == std::vector<int>(4, 0));
  CHECK(space.taken_bytes() == 0);
}

}  // namespace
}  // namespace oriel::window
