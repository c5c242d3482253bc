// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <optional>
#include <random>
#include <vector>

#include <catch2/catch.hpp>

#include "net/failover/failover_pair.hpp"
#include "net/failover/path_agreement.hpp"

// Agreement of two ends on a path and an epoch (3.14), on a clock that the test moves. The channel
// loses, duplicates, delays and reorders their statements.
using namespace oriel;
using namespace oriel::net;
using oriel::net::test::LossyPost;
using std::chrono::milliseconds;
using std::chrono::seconds;
using Kind = PathAgreement::Action::Kind;

namespace {

/// One end with a model of its queues, to which the actions are applied.
struct End {
  explicit End(std::uint32_t paths) : agreement(AgreementPolicy{}, paths) {
    usable = static_cast<PathMask>((1u << paths) - 1);
  }
  PathAgreement agreement;
  PathMask usable;
  std::array<PathCause, kPathsMost> causes{};
  // Queue in use: the queue of `path` in `epoch`. It receives, or also sends.
  int path = 0;
  std::uint32_t epoch = 1;
  bool receives = true, sends = true;
  std::uint32_t fenced_up_to = 0;  // last epoch whose queue is in error
  bool over = false;

  void act() {
    for (const auto& action : agreement.take_actions()) {
      switch (action.kind) {
        case Kind::fence:
          REQUIRE(receives);
          REQUIRE(action.epoch == epoch);
          REQUIRE(action.path == path);
          receives = sends = false;
          fenced_up_to = epoch;
          break;
        case Kind::listen:
          REQUIRE_FALSE(receives);
          REQUIRE(action.epoch > epoch);
          epoch = action.epoch;
          path = action.path;
          receives = true;
          break;
        case Kind::go:
          REQUIRE(receives);
          REQUIRE(action.epoch == epoch);
          REQUIRE(action.path == path);
          sends = true;
          break;
        case Kind::fail:
          REQUIRE_FALSE(receives);
          over = true;
          break;
      }
    }
  }
  void set(PathMask mask) {
    usable = mask;
    agreement.set_usable(mask, causes);
  }
};

struct Pair {
  explicit Pair(std::uint32_t paths = 2, std::uint64_t seed = 1)
      : ends{End(paths), End(paths)}, post(seed) {}
  std::array<End, 2> ends;
  LossyPost post;
  TimePoint now{seconds(1000)};

  void step(int at) {
    End& end = ends[at];
    for (Bytes last_received; post.take(at, last_received);) {
      const auto decoded = decode_statement(last_received);
      REQUIRE(decoded.ok());
      end.agreement.receive(*decoded, now);
      end.act();
    }
    end.agreement.tick(now);
    end.act();
    if (const auto said = end.agreement.take_statement(now))
      post.post(1 - at, encode_statement(*said));
    check();
  }
  void step() {
    const int first = static_cast<int>(post.random() % 2);
    step(first);
    step(1 - first);
    now += milliseconds(1);
  }
  void leave(int at) {
    ends[at].agreement.leave(now);
    ends[at].act();
    check();
  }
  /// Checks each end that sends. Its peer receives on the same path in the same epoch, or has left
  /// this epoch and accepts nothing of it.
  void check() {
    for (int at : {0, 1}) {
      const End &mine = ends[at], &other = ends[1 - at];
      if (!mine.sends) continue;
      if (other.receives && other.epoch == mine.epoch) {
        REQUIRE(other.path == mine.path);
      } else {
        REQUIRE(other.fenced_up_to >= mine.epoch);
      }
      // No queue of an earlier epoch is active at the peer.
      REQUIRE((!other.receives || other.epoch >= mine.epoch));
      REQUIRE((other.receives || other.fenced_up_to >= mine.epoch));
    }
  }
  bool run_until_settled(int most = 20'000) {
    for (int i = 0; i < most; ++i) {
      if (is_settled()) return true;
      step();
    }
    return is_settled();
  }
  bool is_settled() const {
    const End &a = ends[0], &b = ends[1];
    if (a.over && b.over) return true;
    return a.sends && b.sends && a.epoch == b.epoch && a.agreement.stage() == PathStage::running &&
           b.agreement.stage() == PathStage::running;
  }
};

}  // namespace

TEST_CASE("a statement that was overtaken by a newer one changes nothing", "[req:3.14]") {
  Pair pair;
  PathStatement newer{.serial = 7, .epoch = 1, .stage = PathStage::running, .usable = 3};
  newer.usable_now = 0b10;
  PathStatement older = newer;
  older.serial = 6;
  older.usable_now = 0b01;
  pair.ends[0].agreement.receive(newer, pair.now);
  pair.ends[0].agreement.receive(older, pair.now);
  CHECK(pair.ends[0].agreement.peer_usable_now() == 0b10);
  CHECK(pair.ends[0].agreement.peer().serial == 7);
}

TEST_CASE("both ends are quiet once they agree on the best path, on others they retransmit",
          "[req:3.14]") {
  Pair pair;
  REQUIRE(pair.run_until_settled());
  for (int i = 0; i < 100; ++i) pair.step();
  std::size_t said = 0;
  for (int i = 0; i < 1000; ++i, pair.now += milliseconds(1)) {
    for (End& end : pair.ends) said += end.agreement.take_statement(pair.now).has_value() ? 1 : 0;
  }
  CHECK(said == 0);
  // Away from the best path, each end retransmits its usable paths.
  pair.ends[0].set(0b10);
  pair.leave(0);
  REQUIRE(pair.run_until_settled());
  for (int i = 0; i < 100; ++i) pair.step();
  for (int i = 0; i < 1000; ++i, pair.now += milliseconds(1)) {
    for (End& end : pair.ends) said += end.agreement.take_statement(pair.now).has_value() ? 1 : 0;
  }
  CHECK(said >= 8);
  CHECK(said <= 12);
}

TEST_CASE("messages that are lost, late, duplicated or cross: both ends agree on one path",
          "[req:3.14][F5][F7][F12]") {
  const char* rounds = std::getenv("ORIEL_TEST_ROUNDS");
  const std::uint64_t seeds = 300 * (rounds != nullptr ? std::strtoull(rounds, nullptr, 10) : 1);
  for (std::uint64_t seed = 1; seed <= seeds; ++seed) {
    INFO("seed " << seed);
    std::mt19937_64 random(seed * 7919);
    const auto paths = static_cast<std::uint32_t>(2 + random() % 3);
    Pair pair(paths, seed);
    pair.post.loss = static_cast<double>(random() % 60) / 100;
    pair.post.duplication = static_cast<double>(random() % 40) / 100;
    pair.post.delay_most = static_cast<int>(random() % 60);
    const auto all = static_cast<PathMask>((1u << paths) - 1);
    for (int event = 0; event < 12; ++event) {
      for (auto wait = random() % 80; wait > 0; --wait) pair.step();
      const int who = static_cast<int>(random() % 2);
      End& end = pair.ends[who];
      if (end.over) break;
      // Keeps path `paths - 1` usable, so that there is a path to settle on.
      end.set(static_cast<PathMask>((random() & all) | 1u << (paths - 1)));
      const bool lost = end.path >= 0 && (end.usable >> end.path & 1) == 0;
      if (end.agreement.has_queue() && (lost || random() % 3 == 0)) pair.leave(who);
    }
    // Leaves an unusable path, as a driver does.
    for (int i = 0; i < 40; ++i) {
      REQUIRE(pair.run_until_settled());
      int left = 0;
      for (const int at : {0, 1}) {
        const End& end = pair.ends[at];
        if ((end.usable >> end.path & 1) != 0 || !end.agreement.has_queue()) continue;
        pair.leave(at);
        ++left;
      }
      if (left == 0) break;
    }
    REQUIRE_FALSE(pair.ends[0].over);
    REQUIRE_FALSE(pair.ends[1].over);
    CHECK((pair.ends[0].usable & pair.ends[1].usable & 1u << pair.ends[0].path) != 0);
  }
}

TEST_CASE("an impossible statement is refused, and ends the agreement of its receiver",
          "[req:3.23]") {
  const PathStatement good{.serial = 1,
                           .epoch = 2,
                           .stage = PathStage::fenced,
                           .usable = 3,
                           .usable_now = 1,
                           .delivered = 77,
                           .fatal = Syndrome::none,
                           .refused = Syndrome::none,
                           .causes = {},
                           .probes = {1, 2, 3, 4}};
  const Bytes bytes = encode_statement(good);
  REQUIRE(decode_statement(bytes).ok());
  CHECK(decode_statement(bytes)->delivered == 77);
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    CHECK_FALSE(decode_statement(ByteView(bytes).first(size)).ok());
  }
  Bytes longer = bytes;
  longer.push_back(std::byte{0});
  CHECK_FALSE(decode_statement(longer).ok());
  // Reports readiness in an epoch that this end does not know.
  Pair pair;
  PathStatement early = good;
  early.serial = 1000;
  early.stage = PathStage::ready;
  pair.ends[0].agreement.receive(early, pair.now);
  pair.ends[0].act();
  CHECK(pair.ends[0].over);
  CHECK(pair.ends[0].agreement.reason().find("cannot be") != std::string::npos);
}
