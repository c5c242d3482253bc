// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "comm/network/silent_peer_detector.hpp"

#include <chrono>
#include <vector>

#include <catch2/catch.hpp>

#include "net/queue/syndrome.hpp"

/// Tests which rank is named after queues have failed (3.19).
namespace oriel::comm {
namespace {

using namespace std::chrono_literals;
using boot::CutOff;

constexpr std::size_t kOwn = 0;  // host
constexpr Duration kPeerTimeout = 20s;
const Duration kLate = SilentPeerDetector::late_after(kPeerTimeout);
constexpr TimePoint kBegin{100s};

device::queue::QueueError error_of(net::Syndrome syndrome) {
  device::queue::QueueError error;
  error.syndrome = static_cast<std::uint8_t>(syndrome);
  return error;
}
const device::queue::QueueError kSilent = error_of(net::Syndrome::transport_retry);

/// Returns peers on the hosts 1, 2, ..., one rank on each.
std::vector<PeerState> hosts(std::size_t count) {
  std::vector<PeerState> made;
  for (std::size_t host = 1; host <= count; ++host)
    made.push_back({host, false, kBegin - kPeerTimeout, {}});
  return made;
}

}  // namespace

TEST_CASE("no peer is named without a failed queue, and without one there is no doubt",
          "[req:3.19]") {
  SilentPeerDetector detector;
  auto peers = hosts(3);
  CHECK_FALSE(detector.detect(peers, kOwn, kBegin, kPeerTimeout).has_value());
  CHECK_FALSE(detector.is_in_doubt());
  peers[1].error = kSilent;
  CHECK_FALSE(detector.detect(peers, kOwn, kBegin, kPeerTimeout).has_value());
  CHECK(detector.is_in_doubt());
  // The peer has left, and had only been probed.
  peers[1].has_left = true;
  peers[1].error.reset();
  CHECK_FALSE(detector.detect(peers, kOwn, kBegin + 10s, kPeerTimeout).has_value());
  CHECK_FALSE(detector.is_in_doubt());
}

TEST_CASE("a silent peer whose ranks have all left is named, whether or not others answer",
          "[req:3.19]") {
  for (const bool others_answer : {false, true}) {
    SilentPeerDetector detector;
    auto peers = hosts(3);
    peers[2].error = kSilent;
    // No rank is left on that host that could be asked.
    peers[2].has_left = true;
    for (auto& peer : peers) peer.answered = others_answer ? kBegin + 1ms : kBegin - kPeerTimeout;
    const auto finding = detector.detect(peers, kOwn, kBegin + 2ms, kPeerTimeout);
    REQUIRE(finding.has_value());
    CHECK(finding->peer == 2);
    CHECK(finding->who == CutOff::peer);
  }
}

TEST_CASE("if a silent rank leaves before the decision, another silent rank is named",
          "[req:3.19]") {
  SilentPeerDetector detector;
  auto peers = hosts(4);
  peers[0].error = peers[3].error = kSilent;
  CHECK_FALSE(detector.detect(peers, kOwn, kBegin, kPeerTimeout).has_value());
  // Peer 0 leaves without an open request, but peer 3 is silent as well.
  peers[0].has_left = true;
  peers[0].error.reset();
  CHECK_FALSE(detector.detect(peers, kOwn, kBegin + 1ms, kPeerTimeout).has_value());
  CHECK(detector.is_in_doubt());
  peers[1].answered = peers[2].answered = kBegin + 1ms;
  const auto finding = detector.detect(peers, kOwn, kBegin + 2ms, kPeerTimeout);
  REQUIRE(finding.has_value());
  CHECK(finding->peer == 3);
  CHECK(finding->who == CutOff::peer);
}

TEST_CASE("a peer on the own host, or with an error other than a timeout, is named at once",
          "[req:3.19]") {
  SilentPeerDetector detector;
  auto peers = hosts(3);
  peers[0].error = kSilent;
  peers[2].error = error_of(net::Syndrome::remote_operation);
  auto finding = detector.detect(peers, kOwn, kBegin, kPeerTimeout);
  REQUIRE(finding.has_value());
  CHECK(finding->peer == 2);
  peers[2].error.reset();
  peers[0].host = kOwn;
  finding = detector.detect(peers, kOwn, kBegin, kPeerTimeout);
  REQUIRE(finding.has_value());
  CHECK(finding->peer == 0);
  CHECK(finding->who == CutOff::peer);
}

TEST_CASE("a host that receives from no peer is found cut off once the peers' answers are late",
          "[req:3.19]") {
  SilentPeerDetector detector;
  auto peers = hosts(3);
  peers[0].error = kSilent;
  CHECK_FALSE(detector.detect(peers, kOwn, kBegin, kPeerTimeout).has_value());
  CHECK_FALSE(detector.detect(peers, kOwn, kBegin + kLate / 2, kPeerTimeout).has_value());
  const auto finding = detector.detect(peers, kOwn, kBegin + kLate, kPeerTimeout);
  REQUIRE(finding.has_value());
  CHECK(finding->who == CutOff::self);
}

TEST_CASE("a peer that answered while another was silent gets the full peer timeout",
          "[req:3.19]") {
  SilentPeerDetector detector;
  auto peers = hosts(2);
  peers[0].error = kSilent;
  peers[1].answered = kBegin - kPeerTimeout / 2;
  CHECK_FALSE(detector.detect(peers, kOwn, kBegin, kPeerTimeout).has_value());
  CHECK_FALSE(detector.detect(peers, kOwn, kBegin + 3 * kLate, kPeerTimeout).has_value());
  CHECK(detector.is_in_doubt());
  SECTION("it answers") {
    peers[1].answered = kBegin + 1ms;
    const auto finding = detector.detect(peers, kOwn, kBegin + 3 * kLate + 1ms, kPeerTimeout);
    REQUIRE(finding.has_value());
    CHECK(finding->peer == 0);
    CHECK(finding->who == CutOff::peer);
  }
  SECTION("its queue fails") {
    peers[1].error = kSilent;
    const auto finding = detector.detect(peers, kOwn, kBegin + 3 * kLate + 1ms, kPeerTimeout);
    REQUIRE(finding.has_value());
    CHECK(finding->who == CutOff::self);
  }
  SECTION("it does not") {
    const auto finding = detector.detect(peers, kOwn, kBegin + kPeerTimeout, kPeerTimeout);
    REQUIRE(finding.has_value());
    CHECK(finding->who == CutOff::self);
  }
}

TEST_CASE(
    "an answer is late after a quarter of the peer timeout, but at least 1.5 s if that is longer",
    "[req:3.19]") {
  CHECK(SilentPeerDetector::late_after(34s) == 8500ms);
  CHECK(SilentPeerDetector::late_after(4s) == 1500ms);
  CHECK(SilentPeerDetector::late_after(1300ms) == 1300ms);
}

TEST_CASE("a peer that refuses a key is named once its departure is known, or after 500 ms",
          "[req:3.19]") {
  for (const bool leaves : {false, true}) {
    SilentPeerDetector detector;
    auto peers = hosts(3);
    peers[1].error = error_of(net::Syndrome::remote_access);
    CHECK_FALSE(detector.detect(peers, kOwn, kBegin, kPeerTimeout).has_value());
    CHECK(detector.is_in_doubt());
    CHECK_FALSE(detector.detect(peers, kOwn, kBegin + 300ms, kPeerTimeout).has_value());
    peers[1].has_left = leaves;
    const auto finding =
        detector.detect(peers, kOwn, kBegin + (leaves ? 301ms : 500ms), kPeerTimeout);
    REQUIRE(finding.has_value());
    CHECK(finding->peer == 1);
    CHECK(finding->who == CutOff::peer);
  }
}

}  // namespace oriel::comm
