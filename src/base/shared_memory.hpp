// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>
#include <utility>

#include "oriel/error.hpp"

#include "base/fd.hpp"

namespace oriel {

/// A memfd of `bytes`, all zero, that can neither shrink under a peer's feet nor grow.
Result<OwnedFd> make_sealed_memfd(std::size_t bytes);

/// That `fd`, which a peer has sent, is a memfd of `bytes` that the peer can no longer resize: a
/// file that shrinks under a mapping would kill this process with SIGBUS. ErrorCode::remote if not.
Status check_sealed_memfd(const OwnedFd& fd, std::size_t bytes);

/// Shared memory that this process has mapped to read and write; unmapped when destroyed.
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
  /// The first `bytes` bytes of what `fd` refers to, which has as many.
  static Result<SharedMapping> map(const OwnedFd& fd, std::size_t bytes);

  std::byte* data() const { return bytes_.data(); }
  std::size_t size() const { return bytes_.size(); }

 private:
  explicit SharedMapping(std::span<std::byte> bytes) : bytes_(bytes) {}
  std::span<std::byte> bytes_;
};

}  // namespace oriel
