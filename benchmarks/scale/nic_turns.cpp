// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "scale/nic_turns.hpp"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/deadline.hpp"
#include "net/soft/nic_soft.hpp"
#include "net/soft/soft_send_queue.hpp"
#include "net/support/local_wires.hpp"
#include "scale/model.hpp"
#include "scale/model_results.hpp"

namespace oriel::scale {
namespace {

using SteadyTime = std::chrono::steady_clock;

/// A NIC with `count` queues, all connected to one queue of a peer.
class IdleNic {
 public:
  /// Creates the queues; returns an error message on failure.
  std::optional<std::string> make_queues(std::size_t count) {
    nic_.add_wire(exchange_.attach());
    far_.add_wire(exchange_.attach());
    auto made = make_queue(far_);
    if (!made.ok()) return made.error().to_string();
    for (std::size_t i = 0; i < count; ++i) {
      auto queue = make_queue(nic_);
      if (!queue.ok()) return queue.error().to_string();
      const Status connected = queue.value().connect({0, far_.address(0), made.value().number()});
      if (!connected.ok()) return connected.error().to_string();
      queues_.push_back(std::move(queue).value());
    }
    queues_.push_back(std::move(made).value());
    return std::nullopt;
  }
  double best_turn_us() {
    constexpr int kTurns = 20, kTries = 30;
    double best = 0;
    for (int i = 0; i < kTries; ++i) {
      const auto begin = SteadyTime::now();
      for (int turn = 0; turn < kTurns; ++turn) nic_.progress();
      const std::chrono::duration<double, std::micro> spent = SteadyTime::now() - begin;
      best = i == 0 ? spent.count() / kTurns : std::min(best, spent.count() / kTurns);
    }
    return best;
  }

 private:
  static Result<net::SendQueue> make_queue(net::NicSoft& nic) {
    net::SendQueue::Options options;
    options.depth = 512;  // depth in communicators
    options.fetch_slots = 16;
    return net::SendQueue::create(nic, options);
  }

  net::test::LocalWires exchange_;
  net::NicSoft nic_{{.clock = &SteadyClock::instance()}};
  net::NicSoft far_{{.clock = &SteadyClock::instance()}};
  std::vector<net::SendQueue> queues_;  // queues of both NICs
};

}  // namespace

void report_nic_turn(int size) {
  const int queues = size - std::min(size, kRanksOfNode);
  // Skipped for 65,536 ranks: the queues would take 2.5 GiB, and smaller sizes already show the
  // trend.
  if (queues == 0 || queues > 10'000) return;
  IdleNic nic;
  const auto parameters = bench::Fields().add("ranks", size).add("queues", queues);
  if (const auto error = nic.make_queues(static_cast<std::size_t>(queues))) {
    results().result("nic_turn", parameters, "us", 0, bench::Fields().add("error", *error));
    return;
  }
  results().result("nic_turn", parameters, "us", nic.best_turn_us());
}

}  // namespace oriel::scale
