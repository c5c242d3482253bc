// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "boot/link/liveness.hpp"

#include <vector>

#include <catch2/catch.hpp>

// Tests the chains of waits that ranks announce to each other.
namespace oriel::boot {
namespace {

/// Makes `from` announce a wait for `on`, and `to` receive it.
void announce(Liveness& from, int on, Liveness& to) {
  from.stuck(on);
  FrameReader reader;
  std::vector<Frame> frames;
  for (const Bytes& notice : from.take_outgoing()) REQUIRE(reader.feed(notice, frames).ok());
  for (const Frame& frame : frames) REQUIRE(to.receive(frame).ok());
}

}  // namespace

TEST_CASE("a chain of waits ends at the rank that waits for nobody, and nowhere if it is a cycle",
          "[req:1.12]") {
  Liveness first(1, 4), second(2, 4), observer(0, 4);
  announce(first, 2, observer);
  announce(second, 3, observer);
  CHECK(observer.end_of_chain(1).rank == 3);
  CHECK_FALSE(observer.end_of_chain(1).waits_for_itself);
  announce(second, 1, observer);
  CHECK(observer.end_of_chain(1).rank == -1);
  announce(second, -1, observer);
  CHECK(observer.end_of_chain(1).rank == 2);
}

TEST_CASE("a chain of waits ends at a rank that waits for its own kernel, until that wait ends",
          "[D9]") {
  Liveness first(1, 3), second(2, 3), observer(0, 3);
  announce(first, 2, observer);
  announce(second, 2, observer);
  for (const int from : {1, 2}) {
    CHECK(observer.end_of_chain(from).rank == 2);
    CHECK(observer.end_of_chain(from).waits_for_itself);
  }
  CHECK(second.end_of_chain(2).rank == 2);  // the rank itself
  announce(second, -1, observer);
  CHECK(observer.end_of_chain(1).rank == 2);
  CHECK_FALSE(observer.end_of_chain(1).waits_for_itself);
}

}  // namespace oriel::boot
