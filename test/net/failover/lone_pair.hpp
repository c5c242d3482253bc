// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include <catch2/catch.hpp>

#include "net/failover/failover_pair.hpp"

namespace oriel::net::test {

/// Two ranks with one path and a queue without failover, driven as a FailoverPair is.
struct LonePair {
  LonePair(const SendQueue::Options& options, std::size_t words)
      : exchanges(FailoverPair::make_exchanges(1)),
        a(exchanges, clock, words),
        b(exchanges, clock, words),
        there(SendQueue::create(*a.nics[0], options).value()),
        back(SendQueue::create(*b.nics[0], options).value()) {
    REQUIRE(there.connect({0, b.nics[0]->address(0), back.number(), 1}).ok());
    REQUIRE(back.connect({0, a.nics[0]->address(0), there.number(), 1}).ok());
    control.timeout_ns = 1;
  }
  void step() {
    for (FailoverRank* const rank : {&a, &b}) {
      rank->nics[0]->progress();
      rank->wires[0]->pass();
    }
    clock.advance(FailoverPair::kStep);
  }
  void run_for(Duration time) {
    for (const TimePoint end = clock.now() + time; clock.now() < end;) step();
  }
  template <class Done>
  bool run_until(const Done& done, Duration most) {
    for (const TimePoint end = clock.now() + most; clock.now() < end; step()) {
      if (done()) return true;
    }
    return done();
  }
  static bool is_complete(const SendQueue& queue, const dq::Posted& posted) {
    return FailoverPair::completed(queue.view()) >= posted.end;
  }
  static bool is_over(const SendQueue& queue, const dq::Posted& posted) {
    return is_complete(queue, posted) || queue.view().indexes->error != 0;
  }
  bool has_failed(const SendQueue& queue) const { return *queue.memory().first_error != 0; }

  ManualClock clock;
  std::vector<std::unique_ptr<LocalWires>> exchanges;
  FailoverRank a, b;
  SendQueue there, back;
  device::WaitControl control;
};

}  // namespace oriel::net::test
