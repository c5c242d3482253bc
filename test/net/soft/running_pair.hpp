// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>

#include "net/queue/operations_body.hpp"
#include "net/soft/nic_pair.hpp"
#include "net/support/run_nic.hpp"

namespace oriel::net::test {

/// Two ranks with one connected queue, whose NICs run on a thread each.
struct RunningPair : PairCalls<RunningPair, device::Memory> {
  explicit RunningPair(const SendQueue::Options& of_there = {},
                       const SendQueue::Options& of_back = {})
      : there(a.make_queue(of_there)), back(b.make_queue(of_back)) {
    connect(a, there, b, back);
    control.timeout_ns = 100'000'000'000;
  }
  RunningPair(const RunningPair&) = delete;
  RunningPair& operator=(const RunningPair&) = delete;
  const dq::QueueView& view() const { return there.view(); }
  OperationsPath path() const { return {view(), a.region, b.region, control}; }

  LocalWires exchange;
  Side a{exchange}, b{exchange};
  SendQueue there, back;
  device::WaitControl control;
  std::array<NicThread, 2> threads{run_nic(a.nic), run_nic(b.nic)};
};

}  // namespace oriel::net::test
