// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>
#include <utility>

#include "oriel/error.hpp"

#include "base/fd.hpp"

namespace oriel {

/// Creates a zeroed memfd of `bytes` bytes, sealed so that neither end can shrink or grow it.
Result<OwnedFd> make_sealed_memfd(std::size_t bytes);

/// Checks that `fd`, received from a peer, is a memfd of `bytes` bytes that the peer can no longer
/// resize. A file that shrinks under a mapping would kill this process with SIGBUS. Returns
/// ErrorCode::remote for any other descriptor, and ErrorCode::system if a system call fails.
Status check_sealed_memfd(const OwnedFd& fd, std::size_t bytes);

/// Shared memory, mapped by this process for reading and writing; unmapped when destroyed.
/// Move-only. The descriptor may be closed once it is mapped.
class SharedMapping {
 public:
  SharedMapping() = default;
  SharedMapping(SharedMapping&& other) noexcept : bytes_(std::exchange(other.bytes_, {})) {}
  SharedMapping& operator=(SharedMapping&& other) noexcept {
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~SharedMapping();
  /// Maps the first `bytes` bytes of `fd`, which must be at least that large.
  static Result<SharedMapping> map(const OwnedFd& fd, std::size_t bytes);

  std::byte* data() const { return bytes_.data(); }
  std::size_t size() const { return bytes_.size(); }

 private:
  explicit SharedMapping(std::span<std::byte> bytes) : bytes_(bytes) {}
  std::span<std::byte> bytes_;
};

}  // namespace oriel
