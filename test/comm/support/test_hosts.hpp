// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "base/fd.hpp"

namespace oriel::test {

/// Network namespaces that act as hosts. Host K, counted from 1, is 10.77.K.2 on `net0`; further
/// links are 10.78.K.2 on `net1` and so on. No link leads to the addresses of another link's
/// network. All traffic between hosts passes a router in its own namespace. The namespaces end with
/// this object and the processes inside. Failures throw. If hosts cannot be made, or no fabric wire
/// is available, the program ends as skipped.
class TestHosts {
 public:
  /// Makes hosts with `links` links each.
  explicit TestHosts(int count, int links = 1);
  TestHosts(const TestHosts&) = delete;
  TestHosts& operator=(const TestHosts&) = delete;

  /// Moves the calling thread, and threads that it starts later, to a host.
  void enter(int host) const;
  /// Takes a link of a host down (cut) or up again (mend).
  void cut(int host, int link = 0) const;
  void mend(int host, int link = 0) const;
  /// Makes the hosts drop packets that arrive on another link than the route back to the sender.
  void refuse_detours() const;
  /// Makes the router drop `percent` of 100 packets.
  void drop(int percent) const;

  /// Returns why hosts cannot be made here, or an empty string.
  static std::string lack();
  /// Returns why packets cannot be dropped here, or an empty string.
  static std::string lack_of_loss();

 private:
  void make_router(int links);

  std::vector<OwnedFd> hosts_;  // namespaces
  OwnedFd router_;
};

}  // namespace oriel::test
