// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>

namespace oriel::kernels {

/// Which of two ways brings long messages faster from one peer: through slots, with two copies by
/// two processors, or by one copy of the kernel. That depends on which caches the two processors
/// share, which a virtual machine does not tell, and it changes when a thread moves. So both are
/// timed: the faster one carries the messages, and the other one each kTrial-th of them. One
/// thread.
class FasterWay {
 public:
  static constexpr std::uint32_t kTrial = 64;

  /// Returns whether the next message is to be read by the kernel.
  bool reads_next() {
    ++messages_;
    if (read_ == 0 || slots_ == 0) return read_ == 0;
    const bool reads = read_ < slots_;
    return messages_ % kTrial == 0 ? !reads : reads;
  }
  /// Notes the time of a message.
  void note(bool was_read, std::uint64_t ns, std::uint64_t bytes) {
    std::uint64_t& known = was_read ? read_ : slots_;
    std::uint64_t now = std::max<std::uint64_t>(1, (ns << 10) / (bytes >> 10));
    // One that was interrupted says little.
    if (known != 0) now = (3 * known + std::min(now, 2 * known)) / 4;
    known = std::max<std::uint64_t>(1, now);
  }

 private:
  std::uint32_t messages_ = 0;
  // Mean times of a KiB, in ns / 1024. 0: not known yet.
  std::uint64_t read_ = 0;
  std::uint64_t slots_ = 0;
};

}  // namespace oriel::kernels
