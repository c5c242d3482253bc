// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "oriel/error.hpp"

#include "base/deadline.hpp"
#include "base/fd.hpp"
#include "net/fabric/wire_fabric.hpp"

namespace oriel::net {

/// Where a thread that drives a NIC with a fabric wire sleeps when there is nothing to do: until
/// the wire's descriptor becomes readable, or, where it has none or something is on its way, for
/// naps of 50 us to 1 ms. While others drive the NIC, because they wait for it, it only looks in
/// between their turns: woken by each message, it would take the processor from them.
/// Move-only; the wire outlives it. sleep() by one thread, wake() by any.
class FabricSleeper {
 public:
  static Result<FabricSleeper> create(WireFabric& wire);

  /// Returns when there may be something to do, or after 100 ms.
  void sleep(bool others_drive);
  /// Ends a sleep, or the next one.
  void wake();

 private:
  FabricSleeper(WireFabric& wire, OwnedFd bell) : wire_(&wire), bell_(std::move(bell)) {}
  void nap(Duration most);

  WireFabric* wire_;
  OwnedFd bell_;
  Duration nap_{};
  TimePoint woken_{};
};

}  // namespace oriel::net
