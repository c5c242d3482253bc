// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "base/fd.hpp"

namespace oriel::test {

/// Network namespaces that play hosts: each has an address of its own (10.77.K.2 on `net0`; with
/// more links 10.78.K.2 on `net1` and so on, none of which leads to another's addresses), and what
/// one sends to another goes through a router in a namespace of its own. They are gone with this
/// object and the processes inside. Failures are exceptions; where there can be no hosts, or no
/// wire over tcp between them, the program ends as skipped.
class TestHosts {
 public:
  /// With so many links each, up to 4.
  explicit TestHosts(int count, int links = 1);
  TestHosts(const TestHosts&) = delete;
  TestHosts& operator=(const TestHosts&) = delete;

  /// Moves the calling thread, and those that it starts from then on, to a host.
  void enter(int host) const;
  /// Takes a link of the host's down, and up again.
  void cut(int host, int link = 0) const;
  void mend(int host, int link = 0) const;
  /// Has the hosts drop what comes by another link than that by which they would answer.
  void refuse_detours() const;
  /// Has the router drop so many of a hundred packets.
  void drop(int percent) const;

  /// Why there can be none here; empty if there can.
  static std::string lack();
  /// Why no packets can be dropped here.
  static std::string lack_of_loss();

 private:
  void make_router(int links);

  std::vector<OwnedFd> hosts_;  // namespaces
  OwnedFd router_;
};

}  // namespace oriel::test
