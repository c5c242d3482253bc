// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>

namespace oriel::kernels {

/// Chooses the faster of two ways to move long messages from one peer. One way goes through slots,
/// with two copies by two processors. The other is one copy by the Linux kernel. The answer depends
/// on which caches the processors share, which a virtual machine does not report, and changes when
/// a thread migrates. So both ways are timed: the faster one carries the messages, and the other
/// one each kTrial-th message. The first message of each way is not counted, since it may be the
/// first access to its memory. For one thread.
class FasterWay {
 public:
  static constexpr std::uint32_t kTrial = 64;

  /// Returns whether the Linux kernel is to read the next message (rendezvous read).
  bool reads_next() {
    ++messages_;
    if (!read_.is_known() || !slots_.is_known()) return messages_ % 2 != 0;
    const bool reads = read_.mean < slots_.mean;
    return messages_ % kTrial == 0 ? !reads : reads;
  }
  /// Records the time of a message of at least 1 KiB.
  void note(bool was_read, std::uint64_t ns, std::uint64_t bytes) {
    Way& way = was_read ? read_ : slots_;
    if (way.messages++ == 0) return;
    std::uint64_t now = std::max<std::uint64_t>(1, (ns << 10) / (bytes >> 10));
    // Caps a sample at twice the mean: a copy whose thread was interrupted says little.
    if (way.is_known()) now = (3 * way.mean + std::min(now, 2 * way.mean)) / 4;
    way.mean = std::max<std::uint64_t>(1, now);
  }

 private:
  struct Way {
    std::uint32_t messages = 0;
    std::uint64_t mean = 0;  // time of a KiB, in units of ns / 1024; 0: unknown
    bool is_known() const { return mean != 0; }
  };
  std::uint32_t messages_ = 0;
  Way read_;
  Way slots_;
};

}  // namespace oriel::kernels
