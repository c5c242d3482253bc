// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>

#include "oriel/error.hpp"

#include "base/deadline.hpp"
#include "base/event_loop.hpp"
#include "base/task.hpp"
#include "window/registration/registry.hpp"

namespace oriel::window {

/// Describes a window to the sink that creates its device object.
struct WindowFacts {
  RegisteredWindow window;  ///< handle is null: create() makes the handle
  std::size_t slot_bytes = 0;
};

/// Makes the objects that handles point to. Thread-safe.
class WindowSink {
 public:
  virtual ~WindowSink() = default;
  /// Creates the object for a window. Local; never synchronises a device.
  virtual Result<void*> create(const WindowFacts& facts) = 0;
  /// Copies all created objects to where kernels read them: once for a batch. May be called again
  /// after a failure.
  virtual Status flush() { return {}; }
  /// Destroys what create() returned.
  virtual void destroy(void* handle) noexcept = 0;
};

/// Receives every window of a communicator, for example to register it with NICs. A registration
/// calls prepare() on every rank of the world or on none. Once all ranks know the results of all
/// ranks, it calls either commit() or rollback().
class Participant {
 public:
  virtual ~Participant() = default;
  /// Prepares for `windows`, which are mapped but not visible yet. Collective over the world. May
  /// call the world's Group; it then makes all its calls even after a failure of its own. Keeps
  /// nothing after an error. Its waits outside the Group end by `deadline`, which leaves the
  /// registration time to learn which rank is missing.
  virtual Task<Status> prepare(EventLoop& loop, std::span<const RegisteredWindow> windows,
                               Deadline deadline) = 0;
  /// Called once the windows of the last prepare() are registered. Local; cannot fail.
  virtual void commit() noexcept = 0;
  /// Undoes the last prepare(), which succeeded here. Local; cannot fail.
  virtual void rollback() noexcept = 0;
  /// Called once the window with this serial is deregistered. Local; cannot fail.
  virtual void deregister(std::uint64_t serial) noexcept = 0;
};

}  // namespace oriel::window
