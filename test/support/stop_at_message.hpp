// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <csignal>
#include <cstdint>
#include <optional>

#include "base/system_table.hpp"

namespace oriel::test {

/// Has this process stop before its k-th message from then on, if k is not 0. It counts them all.
/// One at a time.
class StopAtMessage {
 public:
  explicit StopAtMessage(std::uint64_t k) {
    sent_ = 0;
    stop_at_ = k;
    static const SystemTable table = [] {
      SystemTable made = real_system_table();
      made.sendmsg = [](int fd, const msghdr* message, int flags) {
        if (++sent_ == stop_at_) ::raise(SIGSTOP);
        return real_system_table().sendmsg(fd, message, flags);
      };
      return made;
    }();
    scoped_.emplace(table);
  }
  std::uint64_t sent() const { return sent_; }

 private:
  static inline std::atomic<std::uint64_t> sent_, stop_at_;
  std::optional<ScopedSystemTable> scoped_;
};

}  // namespace oriel::test
