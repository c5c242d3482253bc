// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <csignal>
#include <cstdint>
#include <optional>

#include "base/system_table.hpp"

namespace oriel::test {

/// Stops this process (SIGSTOP) before its k-th sendmsg(), counted from construction; 0: never.
/// Counts all messages, or only those that carry descriptors. Use one at a time.
class StopAtMessage {
 public:
  enum class Counts { all, with_descriptors };

  explicit StopAtMessage(std::uint64_t k, Counts counts = Counts::all) {
    sent_ = 0;
    stop_at_ = k;
    only_descriptors_ = counts == Counts::with_descriptors;
    static const SystemTable table = [] {
      SystemTable made = real_system_table();
      made.sendmsg = [](int fd, const msghdr* message, int flags) {
        const bool counted = message->msg_controllen > 0 || !only_descriptors_;
        if (counted && ++sent_ == stop_at_) ::raise(SIGSTOP);
        return real_system_table().sendmsg(fd, message, flags);
      };
      return made;
    }();
    scoped_.emplace(table);
  }
  std::uint64_t sent() const { return sent_; }

 private:
  static inline std::atomic<std::uint64_t> sent_, stop_at_;
  static inline std::atomic<bool> only_descriptors_;
  std::optional<ScopedSystemTable> scoped_;
};

}  // namespace oriel::test
