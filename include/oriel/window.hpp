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

/// A buffer that all ranks of a communicator have registered together:
/// Communicator::register_window makes it. Deregistered when destroyed.
///
/// It holds its communicator: the links to the other ranks end after the last Window and
/// DeviceComm. Before it is destroyed (or closed, or assigned to), nothing may use it on this rank
/// any more, and no kernel of another rank may reach into it; so end your kernels and meet the
/// other ranks first. Ranks may then deregister in any order.
///
/// Move-only. All functions are local and do not block. Distinct objects may be used by distinct
/// threads, one object by one thread at a time.
class ORIEL_API Window {
 public:
  Window(Window&& other) noexcept;
  Window& operator=(Window&& other) noexcept;
  ~Window();

  /// The registered range on this rank, as it was given.
  void* data() const;
  std::size_t bytes() const;

  /// What a kernel takes by value to reach this rank's and its peers' memory, by offset in bytes
  /// from the window's begin. On the CPU: for any code of this process. Valid until this is
  /// destroyed; empty (every range is refused) once it is closed or moved from.
  device::WindowView view() const;
  /// The same as an ncclWindow_t, for kernels that take that and for the C interface; null once it
  /// is closed or moved from.
  ncclWindow_vidmem* handle() const;

  /// Deregisters and says how that went, which the destructor cannot. Later calls do nothing.
  /// Error: invalid_argument if the handle was deregistered through the C interface.
  Status close();

 private:
  friend class Communicator;
  struct Impl;
  explicit Window(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace oriel
