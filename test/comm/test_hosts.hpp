// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include <sys/types.h>

#include "base/fd.hpp"

namespace oriel::test {

/// Network namespaces that play hosts: each has an address of its own (10.77.K.2 on `net0`), and
/// what one sends to another goes through a router in a namespace of its own, or through a relay,
/// a process that holds back every packet for a while. They are gone with this object and the
/// processes inside. Failures are exceptions.
class TestHosts {
 public:
  explicit TestHosts(int count) : TestHosts(count, std::chrono::milliseconds(0)) {}
  /// With a relay, unless the delay is 0.
  TestHosts(int count, std::chrono::milliseconds delay);
  ~TestHosts();
  TestHosts(const TestHosts&) = delete;
  TestHosts& operator=(const TestHosts&) = delete;

  /// Moves the calling thread, and those that it starts from then on, to a host.
  void enter(int host) const;
  /// Takes the host's link down.
  void cut(int host) const;
  /// Has the router drop so many of a hundred packets. Without a relay only.
  void drop(int percent) const;

  /// Why there can be none here; empty if there can.
  static std::string lack();
  /// Why no packets can be dropped here.
  static std::string lack_of_loss();

 private:
  void make_router();
  void start_relay(std::chrono::milliseconds delay);

  std::vector<OwnedFd> hosts_;  // namespaces
  OwnedFd router_;
  pid_t relay_ = -1;
};

}  // namespace oriel::test
