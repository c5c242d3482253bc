// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>

namespace oriel::kernels {

/// Which of two ways brings long messages faster from one peer: through slots, with two copies by
/// two processors, or by one copy of the kernel. That depends on which caches the two processors
/// share, which a virtual machine does not tell, and it changes when a thread moves. So both are
/// timed: the faster one carries the messages, and the other one each kTrial-th of them. The first
/// message of each way is not counted, since it may be the first to touch its memory. One thread.
class FasterWay {
 public:
  static constexpr std::uint32_t kTrial = 64;

  /// Returns whether the next message is to be read by the kernel.
  bool reads_next() {
    ++messages_;
    if (!read_.is_known() || !slots_.is_known()) return messages_ % 2 != 0;
    const bool reads = read_.mean < slots_.mean;
    return messages_ % kTrial == 0 ? !reads : reads;
  }
  /// Notes the time of a message.
  void note(bool was_read, std::uint64_t ns, std::uint64_t bytes) {
    Way& way = was_read ? read_ : slots_;
    if (way.messages++ == 0) return;
    std::uint64_t now = std::max<std::uint64_t>(1, (ns << 10) / (bytes >> 10));
    // One that was interrupted says little.
    if (way.is_known()) now = (3 * way.mean + std::min(now, 2 * way.mean)) / 4;
    way.mean = std::max<std::uint64_t>(1, now);
  }

 private:
  struct Way {
    std::uint32_t messages = 0;
    std::uint64_t mean = 0;  // of a KiB, in ns / 1024
    bool is_known() const { return mean != 0; }
  };
  std::uint32_t messages_ = 0;
  Way read_;
  Way slots_;
};

}  // namespace oriel::kernels
