// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <thread>
#include <vector>

namespace oriel::test {

/// Calls body(0), body(1), ... on a thread each. Returns the number of calls that have returned
/// true.
template <class Body>
int on_threads(int threads, const Body& body) {
  std::atomic<int> good = 0;
  {
    std::vector<std::jthread> running;
    running.reserve(static_cast<std::size_t>(threads));
    for (int i = 0; i < threads; ++i) {
      running.emplace_back([&, i] { good += body(i) ? 1 : 0; });
    }
  }
  return good;
}

}  // namespace oriel::test
