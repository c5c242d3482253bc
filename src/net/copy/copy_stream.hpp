// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "oriel/error.hpp"

#include "base/bytes.hpp"

namespace oriel::net {

/// In-order stream of copies and word writes on one GPU. Its steps reach the GPU's memory and
/// memory of other GPUs that is mapped for it. Host bytes go through slots of pinned memory. The
/// stream runs in the driver of this process, or in another process.
///
/// Waits for the GPU only in the destructor, and in settle() if another process runs the stream.
/// Not thread-safe.
class CopyStream {
 public:
  /// Waits for the stream's work, for up to 30 seconds. After that it leaves to the driver the
  /// memory that the work may still touch.
  virtual ~CopyStream() = default;

  std::byte* slot(std::uint32_t number) const { return slots_ + number * slot_bytes_; }
  std::size_t slot_bytes() const { return slot_bytes_; }

  /// Returns whether eight more of the steps below can start. If not, try again later.
  virtual bool has_capacity() = 0;
  /// Returns how many of these bytes one step can reach; 0 if the address is unknown to the stream.
  virtual std::size_t reach(const std::byte* /*at*/, std::size_t count) { return count; }

  virtual Status load(std::uint32_t slot, const std::byte* from, std::size_t count) = 0;
  /// `from` may be reused once the call returns, the slot only when the step is done.
  virtual Status store(std::byte* to, std::uint32_t slot, ByteView from) = 0;
  virtual Status copy(std::byte* to, const std::byte* from, std::size_t count) = 0;
  /// Writes an aligned word of 4 or 8 bytes, after all earlier steps. A system-scope fence lies
  /// between.
  virtual Status write(std::byte* to, std::uint64_t value, std::size_t bytes) = 0;
  /// Makes signalled() return `count` once all earlier steps are done. `count` only grows.
  virtual Status signal(std::uint64_t count) = 0;
  /// Returns the latest count that was reached. Acquires the effects of the steps before it.
  virtual std::uint64_t signalled() const = 0;
  /// Returns an error if the stream is known to have failed.
  virtual Status poll() = 0;
  /// After an error: returns whether no started step is running any more, for good. Called until it
  /// returns true; no step may be started any more.
  virtual bool settle() noexcept = 0;

 protected:
  std::byte* slots_ = nullptr;
  std::size_t slot_bytes_ = 0;
};

}  // namespace oriel::net
