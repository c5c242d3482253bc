// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>

#include "oriel/api.hpp"
#include "oriel/device/window.hpp"
#include "oriel/error.hpp"

namespace oriel {

class Communicator;

/// A buffer that all ranks of a communicator have registered together, created by
/// Communicator::register_window. Destruction deregisters the window.
///
/// The object keeps its communicator alive: links to other ranks end after the last Window and
/// DeviceComm. Before a Window is destroyed, closed or assigned to, this rank must no longer use
/// it, and no kernel of another rank may access it. So end your kernels and synchronise with the
/// other ranks first. Ranks may then deregister in any order.
///
/// Move-only. All functions are local. close(), the destructor and assignment may block while a NIC
/// still accesses the memory; the other functions do not block. Distinct objects may be used by
/// distinct threads; one object by one thread at a time.
///
/// Example, for CPU ranks: returns the address of the first element of a rank's window. Returns
/// null if that memory is out of reach.
/// ```cpp
/// const int* first_of(const oriel::Window& window, int rank) {
///   return static_cast<const int*>(window.view().world_peer(rank, 0, sizeof(int)));
/// }
/// ```
class ORIEL_API Window {
 public:
  Window(Window&& other) noexcept;  ///< takes the registration of `other`
  /// Takes the registration of `other`, and deregisters the window held before. May block as
  /// close() does.
  Window& operator=(Window&& other) noexcept;
  ~Window();  ///< deregisters the window; may block as close() does; an error is only logged

  /// Returns the registered range of this rank, as the user passed it.
  void* data() const;
  /// Returns the size of the range in bytes.
  std::size_t bytes() const;

  /// Returns the argument that a kernel takes by value to access the memory of this rank and its
  /// peers. Offsets are in bytes from the window's begin. On the CPU any code of this process may
  /// use the view. Valid until this object is destroyed. If closed or moved from, the view is empty
  /// and refuses every range.
  device::WindowView view() const;
  /// Returns the window as an ncclWindow_t, for kernels and the C interface. Null if closed or
  /// moved from.
  ncclWindow_vidmem* handle() const;

  /// Deregisters the window and returns the result, which the destructor only logs. May block while
  /// a NIC accesses the memory or the driver waits for the GPU. Later calls do nothing. Error:
  /// invalid_argument if the handle was deregistered through the C interface.
  Status close();

 private:
  friend class Communicator;
  struct Impl;
  explicit Window(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace oriel
