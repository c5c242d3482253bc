// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>

#include "oriel/api.hpp"

namespace oriel {

class Communicator;

/// Memory that can become a window, of Communicator::allocate(): device memory on a GPU, memory
/// that processes can share on the CPU. Freed when destroyed; the owner's pointer ends there, but
/// the memory stays, and its addresses are not given out again, until the last window of this rank
/// on it has gone. Windows of other ranks keep the memory alive too.
///
/// Move-only; a moved-from or default one holds nothing. All functions are local and do not block,
/// except that freeing GPU memory may wait for the device. Distinct objects may be used by distinct
/// threads.
class ORIEL_API Buffer {
 public:
  Buffer();
  Buffer(Buffer&& other) noexcept;
  Buffer& operator=(Buffer&& other) noexcept;
  ~Buffer();

  /// First byte, aligned to at least 4096; null if this holds nothing. On a GPU an address for
  /// kernels and the CUDA runtime, which the CPU must not touch.
  void* data() const;
  /// As asked for; 0 if this holds nothing.
  std::size_t bytes() const;

 private:
  friend class Communicator;
  struct Impl;
  explicit Buffer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace oriel
