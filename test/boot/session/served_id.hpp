// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <csignal>
#include <functional>
#include <stdexcept>
#include <thread>

#include <sys/prctl.h>
#include <unistd.h>

#include "boot/auth/unique_id_format.hpp"
#include "boot/session/forked_ranks.hpp"
#include "boot/session/inherited_memory.hpp"

namespace oriel {

/// A unique id that a separate process serves until this object is destroyed. The test's own
/// process stays without a thread, so that it can fork ranks. A child forked while a thread holds
/// the allocator's lock could deadlock, because the sanitizers' allocators do not handle fork().
/// The thread sanitizer also ends such a child at its first thread.
class ServedId {
 public:
  /// Calls `make` in the serving process.
  explicit ServedId(const std::function<Result<boot::UniqueId>()>& make =
                        [] { return boot::create_unique_id({.ifname = "lo"}); })
      : server_(1, [&](int) -> Status {
          ::prctl(PR_SET_PDEATHSIG, SIGKILL);
          auto id = make();
          if (id.ok()) place_->id = id.value();
          place_->made = id.ok() ? 1 : -1;
          while (id.ok()) ::pause();
          return std::move(id).error();
        }) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    while (place_->made == 0 && std::chrono::steady_clock::now() < end) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    if (place_->made > 0) return;
    throw std::runtime_error("no unique id: " + server_.collect(std::chrono::seconds(1)).at(0));
  }

  const boot::UniqueId& value() const { return place_->id; }
  /// Kills the serving process, like a crash.
  void kill() { server_.kill(0, SIGKILL); }

 private:
  struct Place {
    std::atomic<int> made{0};
    boot::UniqueId id;
  };
  const Shared<Place> place_;
  ForkedRanks server_;
};

}  // namespace oriel
