// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cerrno>
#include <utility>

#include <fcntl.h>
#include <unistd.h>

#include "base/system_table.hpp"

namespace oriel {

/// The one owner of a file descriptor; closes it when destroyed. Move-only.
///
/// Never one of the standard three, which the kernel gives out where an application has closed
/// them: what anybody prints would land in the memory of a window. Such a one is moved, which
/// leaves the owner empty, with the cause in errno, where there is no other.
class OwnedFd {
 public:
  OwnedFd() = default;
  explicit OwnedFd(int fd) : fd_(above_standard(fd)) {}
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
  int release() { return std::exchange(fd_, -1); }
  void reset() {
    // The status is of no use: Linux frees the number even when close reports an error.
    if (fd_ >= 0) static_cast<void>(sys().close(fd_));
    fd_ = -1;
  }

 private:
  static int above_standard(int fd) {
    if (fd < 0 || fd > STDERR_FILENO) return fd;
    const int moved = sys().fcntl_int(fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
    const int status = errno;
    static_cast<void>(sys().close(fd));
    errno = status;
    return moved;
  }

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
