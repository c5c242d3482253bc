// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "oriel/error.hpp"

#include "base/bytes.hpp"

namespace oriel::net {

/// Copies and words that one GPU does one behind the other, to, from and in its memory and that of
/// other GPUs which is mapped for it. Bytes of the processor's go through slots of pinned memory.
/// Who does it is somebody else: the driver in this process, or another process.
///
/// Nothing waits for the GPU but the destructor. Not thread-safe, but show() and hide().
class CopyStream {
 public:
  /// Ends when the stream's work has, or after 30 seconds, and then leaves the driver what that may
  /// still touch.
  virtual ~CopyStream() = default;

  std::byte* slot(std::uint32_t number) const { return slots_ + number * slot_bytes_; }
  std::size_t slot_bytes() const { return slot_bytes_; }

  /// Whether eight more of the steps below can begin. False: again later.
  virtual bool has_room() = 0;
  /// How many of these bytes one step can reach; 0 if it knows nothing of the address.
  virtual std::size_t reach(const std::byte* /*at*/, std::size_t count) { return count; }

  virtual Status load(std::uint32_t slot, const std::byte* from, std::size_t count) = 0;
  /// `from` may go once it returns; the slot may not before the step is done.
  virtual Status store(std::byte* to, std::uint32_t slot, ByteView from) = 0;
  virtual Status copy(std::byte* to, const std::byte* from, std::size_t count) = 0;
  /// A word of 4 or 8 bytes, aligned: behind all before, with a fence of the whole system between.
  virtual Status write(std::byte* to, std::uint64_t value, std::size_t bytes) = 0;
  /// Has told() yield `count`, which only grows, once all before is done.
  virtual Status tell(std::uint64_t count) = 0;
  /// Acquires what was done before.
  virtual std::uint64_t told() const = 0;
  /// Whether the stream is alive, as far as can be told.
  virtual Status look() = 0;
  /// After an error: whether nothing of what began is being done any more, for good. Asked until
  /// then; nothing begins any more.
  virtual bool settle() noexcept = 0;

 protected:
  std::byte* slots_ = nullptr;
  std::size_t slot_bytes_ = 0;
};

}  // namespace oriel::net
