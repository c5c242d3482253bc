// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "oriel/error.hpp"

#include "base/deadline.hpp"
#include "base/fd.hpp"
#include "net/fabric/wire_fabric.hpp"

namespace oriel::net {

/// Sleeps for a thread that drives a NIC with a fabric wire, when there is nothing to do. Sleeps
/// until the wire's descriptor becomes readable. If there is no descriptor or something is in
/// flight, naps for 50 us to 1 ms.
///
/// While other threads drive the NIC because they wait for it, this thread only naps and polls
/// between their turns. If each message woke it, it would take the processor from them. Move-only;
/// the wire outlives it. One thread calls sleep(); any may call wake().
class FabricSleeper {
 public:
  static Result<FabricSleeper> create(WireFabric& wire);

  /// Returns when there may be something to do, or after 100 ms.
  void sleep(bool others_drive);
  /// Ends the current sleep, or the next one.
  void wake();

 private:
  FabricSleeper(WireFabric& wire, OwnedFd wake_event)
      : wire_(&wire), wake_event_(std::move(wake_event)) {}
  void nap(Duration most);

  WireFabric* wire_;
  OwnedFd wake_event_;
  Duration nap_{};
  TimePoint woken_{};
};

}  // namespace oriel::net
