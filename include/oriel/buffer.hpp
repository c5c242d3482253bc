// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>

#include "oriel/api.hpp"

namespace oriel {

class Communicator;

/// Memory of Communicator::allocate() that can be registered as a window. On a GPU it is device
/// memory, on the CPU memory that processes can share. After destruction the owner must not use the
/// pointer. The memory is freed, and its addresses become reusable, when this rank's last window on
/// it has ended. Windows of other ranks keep the memory alive too.
///
/// Move-only; a moved-from or default-constructed object holds nothing. All functions are local. No
/// function blocks, except that the destructor and assignment may wait for a GPU. Distinct objects
/// may be used by distinct threads.
///
/// Example: registers new memory as a window of all ranks.
/// ```cpp
/// #include "oriel/communicator.hpp"
/// oriel::Result<oriel::Window> make_window(oriel::Communicator& comm, std::size_t bytes) {
///   const oriel::Result<oriel::Buffer> buffer = comm.allocate(bytes);
///   if (!buffer.ok()) return buffer.error();
///   return comm.register_window(*buffer);  // the window keeps the memory
/// }
/// ```
class ORIEL_API Buffer {
 public:
  Buffer();                         ///< holds nothing
  Buffer(Buffer&& other) noexcept;  ///< takes the memory; `other` holds nothing then
  /// Takes the memory of `other`, and destroys the buffer held before. May block on a GPU.
  Buffer& operator=(Buffer&& other) noexcept;
  ~Buffer();  ///< gives up the memory; may block on a GPU; an error is only logged

  /// Returns the first byte, aligned to at least 4096; null if this object holds nothing. On a GPU
  /// the address is for kernels and the CUDA runtime; the CPU must not access it.
  void* data() const;
  /// Returns the size that was requested, in bytes; 0 if this object holds nothing.
  std::size_t bytes() const;

 private:
  friend class Communicator;
  struct Impl;
  explicit Buffer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace oriel
