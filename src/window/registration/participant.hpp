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

/// A window as its device object describes it.
struct WindowFacts {
  RegisteredWindow window;  ///< its handle is what is being made
  std::size_t slot_bytes = 0;
};

/// Makes the objects that handles point to. Thread-safe.
class WindowSink {
 public:
  virtual ~WindowSink() = default;
  /// The object for a window, or an error. Local; never synchronises a device.
  virtual Result<void*> create(const WindowFacts& facts) = 0;
  /// Brings all objects that were created to where kernels read them: once for a batch. May be
  /// called again after a failure.
  virtual Status flush() { return {}; }
  /// Destroys what create() returned.
  virtual void destroy(void* handle) noexcept = 0;
};

/// Whatever else has to know every window of a communicator, such as NICs. A registration calls
/// prepare() on every rank of the world or on none, then, once all ranks know how all ranks fared,
/// either commit() or rollback().
class Participant {
 public:
  virtual ~Participant() = default;
  /// Gets ready for `windows`, which are mapped but not visible yet. Collective over the world; may
  /// call the world's Group, and then makes all its calls even after a failure of its own. Keeps
  /// nothing after an error. Waits that are not the Group's end by `deadline`, which leaves the
  /// registration some time to learn who was waited for.
  virtual Task<Status> prepare(EventLoop& loop, std::span<const RegisteredWindow> windows,
                               Deadline deadline) = 0;
  /// The windows of the last prepare() are registered. Local; cannot fail.
  virtual void commit() noexcept = 0;
  /// Undoes the last prepare(), which succeeded here. Local; cannot fail.
  virtual void rollback() noexcept = 0;
  /// The window with this serial is gone. Local; cannot fail.
  virtual void deregister(std::uint64_t serial) noexcept = 0;
};

}  // namespace oriel::window
