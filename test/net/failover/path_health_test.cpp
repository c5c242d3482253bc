// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "net/failover/path_health.hpp"

#include <chrono>

#include <catch2/catch.hpp>

// Health of a path (3.14, row B5 of the reference) on a clock that the test moves.
using namespace oriel;
using namespace oriel::net;
using std::chrono::milliseconds;
using std::chrono::seconds;

namespace {

constexpr TimePoint kStart{seconds(1000)};

PathPolicy policy() {
  PathPolicy made;
  made.suspect_after = milliseconds(500);
  made.fail_after = seconds(3);
  made.probe_every = milliseconds(100);
  made.retry_first = seconds(1);
  made.retry_most = seconds(8);
  made.stable_after = seconds(30);
  made.answers_needed = 3;
  return made;
}

}  // namespace

TEST_CASE("a path with work but without answers is suspected, then failed", "[req:3.14][B5]") {
  PathHealth health(policy(), kStart);
  TimePoint now = kStart + seconds(100);
  health.tick(now);
  CHECK(health.state() == PathState::healthy);  // without work no sign of life is expected
  health.has_work(true, now);
  health.tick(now += milliseconds(499));
  CHECK(health.state() == PathState::healthy);
  CHECK_FALSE(health.take_probe(now));
  health.tick(now += milliseconds(1));
  CHECK(health.state() == PathState::suspected);
  CHECK(health.is_usable());
  CHECK(health.take_probe(now));
  CHECK_FALSE(health.take_probe(now + seconds(1)));  // one probe at a time
  SECTION("a completion ends it") {
    health.progressed(now);
    CHECK(health.state() == PathState::healthy);
  }
  SECTION("so does the end of the work") {
    health.has_work(false, now);
    CHECK(health.state() == PathState::healthy);
  }
  SECTION("an answered probe begins it anew") {
    now = kStart + seconds(100) + milliseconds(2900);
    health.probe_answered(now);
    health.tick(now + milliseconds(2999));
    CHECK(health.state() == PathState::suspected);
    health.tick(now + seconds(3));
    CHECK(health.state() == PathState::failed);
  }
  SECTION("else the path has failed") {
    health.tick(kStart + seconds(103) - Duration(1));
    CHECK(health.state() == PathState::suspected);
    health.tick(kStart + seconds(103));
    CHECK(health.state() == PathState::failed);
    CHECK(health.cause() == PathCause{PathCause::Kind::timeout});
    CHECK(to_string(health.cause()) == "no sign of life");
  }
}

TEST_CASE("errors within the window count, older ones do not", "[req:3.14][B5]") {
  PathPolicy with = policy();
  with.errors_most = 3;
  with.error_window = seconds(10);
  PathHealth health(with, kStart);
  TimePoint now = kStart;
  health.error(Syndrome::transport_retry, now);
  health.error(Syndrome::transport_retry, now += seconds(1));
  CHECK(health.state() == PathState::suspected);
  CHECK_FALSE(health.take_probe(now));  // the path is in use, which shows more than a probe
  SECTION("three in a row") {
    health.error(Syndrome::transport_retry, now += seconds(10));
    CHECK(health.state() == PathState::failed);
    CHECK(to_string(health.cause()) == "error 0x15");
  }
  SECTION("work between two of them does not forgive") {
    health.progressed(now);
    CHECK(health.state() == PathState::healthy);
    health.error(Syndrome::transport_retry, now += seconds(10));
    CHECK(health.state() == PathState::failed);
  }
  SECTION("the third one comes late") {
    health.error(Syndrome::transport_retry, now += seconds(10) + Duration(1));
    CHECK(health.state() == PathState::suspected);
  }
}

TEST_CASE("a failed path is probed after a pause, and well after enough answers",
          "[req:3.14][B5]") {
  PathHealth health(policy(), kStart);
  TimePoint now = kStart;
  health.error(Syndrome::transport_retry, now);
  REQUIRE(health.state() == PathState::failed);
  health.tick(now += milliseconds(999));
  CHECK(health.state() == PathState::failed);
  CHECK_FALSE(health.take_probe(now));
  health.tick(now += milliseconds(1));
  REQUIRE(health.state() == PathState::probing);
  SECTION("answers") {
    for (int i = 0; i < 3; ++i) {
      REQUIRE(health.state() == PathState::probing);
      REQUIRE_FALSE(health.is_usable());
      REQUIRE(health.take_probe(now));
      health.probe_answered(now += milliseconds(10));
      CHECK_FALSE(health.take_probe(now));  // not before the probe interval has passed
      health.tick(now += milliseconds(100));
    }
    CHECK(health.state() == PathState::healthy);
  }
  SECTION("no answer, and ever longer pauses") {
    Duration pause = seconds(1);
    for (int i = 0; i < 6; ++i) {
      REQUIRE(health.state() == PathState::probing);
      health.tick(now += seconds(3));
      REQUIRE(health.state() == PathState::failed);
      pause = std::min<Duration>(pause * 2, seconds(8));
      health.tick(now += pause - Duration(1));
      REQUIRE(health.state() == PathState::failed);
      health.tick(now += Duration(1));
    }
    // A first probe is sent now and answered. One answer is not enough.
    REQUIRE(health.take_probe(now));
    health.probe_answered(now);
    CHECK(health.state() == PathState::probing);
  }
}

TEST_CASE("a path that keeps failing is left alone for longer, a stable one is not",
          "[req:3.14][F8][B5]") {
  PathHealth health(policy(), kStart);
  TimePoint now = kStart;
  const auto recover = [&] {
    Duration pause{};
    while (health.state() == PathState::failed) {
      now += milliseconds(10);
      pause += milliseconds(10);
      health.tick(now);
    }
    while (health.state() == PathState::probing) {
      now += milliseconds(100);
      REQUIRE(health.take_probe(now));
      health.probe_answered(now);
    }
    return pause;
  };
  health.error(Syndrome::transport_retry, now);
  for (const int expected : {1, 2, 4, 8, 8}) {
    CHECK(recover() == seconds(expected));
    health.error(Syndrome::transport_retry, now += seconds(1));
  }
  recover();
  health.error(Syndrome::transport_retry, now += seconds(30));
  CHECK(recover() == seconds(1));
}

TEST_CASE("a path that could not be taken into use has failed", "[req:3.14][B5]") {
  PathHealth health(policy(), kStart);
  health.give_up(kStart);
  CHECK(health.state() == PathState::failed);
  CHECK(to_string(health.cause()) == "it could not be taken into use");
  // Events of a path that is not in use change nothing.
  health.error(Syndrome::transport_retry, kStart);
  health.give_up(kStart);
  CHECK(health.cause() == PathCause{PathCause::Kind::given_up});
}
