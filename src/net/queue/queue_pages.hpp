// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>

#include "oriel/error.hpp"

#include "base/bytes.hpp"

/// Memory of queues. Threads of this process or kernels of one GPU fill the rings.
namespace oriel::net {

/// Owner of memory. The queue's producers and this process may have it at different addresses.
class QueuePages {
 public:
  virtual ~QueuePages() = default;
  /// Returns the address for the queue's producers.
  std::byte* user() const { return user_; }
  /// Returns the address for this process; for GPU memory, the address for its copy engine and
  /// adapters.
  std::byte* own() const { return own_; }
  std::size_t bytes() const { return bytes_; }
  /// Writes bytes at `offset` and blocks until they are there. Producers may use those bytes
  /// meanwhile only by polling a single word.
  virtual Status write(std::size_t offset, ByteView from) = 0;

 protected:
  std::byte* user_ = nullptr;
  std::byte* own_ = nullptr;
  std::size_t bytes_ = 0;
};

/// Allocator of queue memory. It outlives its allocations. Thread-safe.
class QueuePagesSource {
 public:
  virtual ~QueuePagesSource() = default;
  /// Allocates memory near the producers, aligned to 512 bytes at least, not initialized.
  virtual Result<std::unique_ptr<QueuePages>> allocate(std::size_t bytes) = 0;
  /// Allocates host memory that the producers can access, aligned to 4096 bytes and zeroed.
  virtual Result<std::unique_ptr<QueuePages>> allocate_on_host(std::size_t bytes) = 0;
};

}  // namespace oriel::net
