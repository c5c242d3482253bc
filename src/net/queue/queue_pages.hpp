// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>

#include "oriel/error.hpp"

#include "base/bytes.hpp"

/// Memory of queues, of which threads of this process or kernels of one GPU fill the rings.
namespace oriel::net {

/// An owner of memory. Whoever fills the queue and who drains it may have it at different
/// addresses.
class QueuePages {
 public:
  virtual ~QueuePages() = default;
  /// Where the queue's users find it.
  std::byte* user() const { return user_; }
  /// Where this process finds it; memory of a GPU, its copy engine and adapters.
  std::byte* own() const { return own_; }
  std::size_t bytes() const { return bytes_; }
  /// Puts bytes there; blocking. Nobody may be using them.
  virtual Status write(std::size_t offset, ByteView from) = 0;

 protected:
  std::byte* user_ = nullptr;
  std::byte* own_ = nullptr;
  std::size_t bytes_ = 0;
};

/// Where memory of queues comes from. Outlives what it gave out. Thread-safe.
class QueuePagesSource {
 public:
  virtual ~QueuePagesSource() = default;
  /// Memory near the users, aligned to a page of theirs, of any content.
  virtual Result<std::unique_ptr<QueuePages>> allocate(std::size_t bytes) = 0;
  /// Memory of the host that the users reach too, aligned to 4096 bytes, zero at first.
  virtual Result<std::unique_ptr<QueuePages>> allocate_on_host(std::size_t bytes) = 0;
};

}  // namespace oriel::net
