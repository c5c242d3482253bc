// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cerrno>
#include <utility>

#include <fcntl.h>
#include <unistd.h>

#include "base/system_table.hpp"

namespace oriel {

/// Least number for new descriptors of this library, if one is free there. Raised together with the
/// limit (raise_descriptor_limit). Low numbers then remain for applications that use select(),
/// which supports numbers below 1,024 only.
inline std::atomic<int> least_descriptor{STDERR_FILENO + 1};

/// Sole owner of a file descriptor; closes it when destroyed. Move-only.
///
/// Never owns descriptors 0 to 2. If an application has closed them, the kernel reuses their
/// numbers, and printed text would overwrite the memory of a window. Such a descriptor is moved to
/// a higher number. If there is none, the owner is empty and errno has the cause.
class OwnedFd {
 public:
  OwnedFd() = default;
  explicit OwnedFd(int fd) : fd_(moved_up(fd)) { count(1); }
  OwnedFd(OwnedFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  OwnedFd& operator=(OwnedFd&& other) noexcept {
    if (this != &other) {
      reset();
      fd_ = std::exchange(other.fd_, -1);
    }
    return *this;
  }
  ~OwnedFd() { reset(); }

  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }
  explicit operator bool() const { return valid(); }
  int release() {
    count(-1);
    return std::exchange(fd_, -1);
  }
  void reset() {
    count(-1);
    // Status ignored: Linux frees the number even if close() reports an error.
    if (fd_ >= 0) static_cast<void>(sys().close(fd_));
    fd_ = -1;
  }
  /// Returns the number of descriptors that this process owns through OwnedFd.
  static int owned() { return owned_.load(std::memory_order_relaxed); }

 private:
  static int moved_up(int fd) {
    const int least = least_descriptor.load(std::memory_order_relaxed);
    if (fd < 0 || fd >= least) return fd;
    int moved = sys().fcntl_int(fd, F_DUPFD_CLOEXEC, least);
    if (moved < 0 && fd > STDERR_FILENO) return fd;
    if (moved < 0) moved = sys().fcntl_int(fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
    const int status = errno;
    static_cast<void>(sys().close(fd));
    errno = status;
    return moved;
  }

  void count(int change) const {
    if (fd_ >= 0) owned_.fetch_add(change, std::memory_order_relaxed);
  }

  static inline std::atomic<int> owned_{0};
  int fd_ = -1;
};

/// Makes an eventfd readable. Retries a few times, since its waiter may have no other wake-up.
inline void raise_event(const OwnedFd& eventfd) {
  constexpr int kAttempts = 4;
  for (int i = 0; i < kAttempts; ++i) {
    const bool raised = sys().eventfd_write(eventfd.get(), 1) == 0;
    if (raised || errno == EAGAIN) return;  // EAGAIN: already readable, the counter is full
  }
}

}  // namespace oriel
