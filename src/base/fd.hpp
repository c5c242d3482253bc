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

/// The least number of a descriptor that this library makes, where there is room there. Higher once
/// the limit has been raised (raise_descriptor_limit), so that low numbers are left to applications
/// that use select(), which knows none from 1,024 on.
inline std::atomic<int> least_descriptor{STDERR_FILENO + 1};

/// The one owner of a file descriptor; closes it when destroyed. Move-only.
///
/// Never one of the standard three, which the kernel gives out where an application has closed
/// them: what anybody prints would land in the memory of a window. Such a one is moved, which
/// leaves the owner empty, with the cause in errno, where there is no other.
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
    // The status is of no use: Linux frees the number even when close reports an error.
    if (fd_ >= 0) static_cast<void>(sys().close(fd_));
    fd_ = -1;
  }
  /// How many descriptors this process owns so.
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

/// Makes an eventfd readable. Tries a few times: whoever waits for it may have no other reason to
/// wake up.
inline void raise_event(const OwnedFd& eventfd) {
  constexpr int kAttempts = 4;
  for (int i = 0; i < kAttempts; ++i) {
    const bool raised = sys().eventfd_write(eventfd.get(), 1) == 0;
    if (raised || errno == EAGAIN) return;  // so full that it is readable
  }
}

}  // namespace oriel
