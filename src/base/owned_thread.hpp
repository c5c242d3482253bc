// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>

#include "oriel/error.hpp"

#include "base/deadline.hpp"

namespace oriel {

/// A thread of the library. All signals are blocked in it. If the CUDA driver is loaded when the
/// thread starts, the thread does not disturb stream captures (RelaxedCapture). An exception that
/// leaves its body ends the thread, never the process. Move-only.
///
/// When the library is unloaded or exit() is called, every running thread except the caller is
/// stopped, whoever owns it. It is joined if it ends within 10 s. So objects that a body uses must
/// not be destroyed as static objects. In a forked child the thread does not exist; its owner may
/// be destroyed there, and does nothing.
class OwnedThread {
 public:
  struct Options {
    const char* name = "oriel";  ///< shown by debuggers; at most 15 bytes
    std::function<void()> body;
    /// Makes the body return soon; may be empty if the body returns in any case. Called by the
    /// owner or at unload, from any thread, perhaps repeatedly, until the thread has ended. It must
    /// not take a lock that the owner holds while it joins.
    std::function<void()> stop;
    /// Called in the thread with the reason if an exception has left the body; may be empty.
    std::function<void(const Error&)> failed;
  };
  /// Starts a thread. Fails if the system cannot create one.
  static Result<OwnedThread> start(Options options);

  OwnedThread() = default;
  OwnedThread(OwnedThread&&) noexcept = default;
  OwnedThread& operator=(OwnedThread&& other) noexcept;
  /// Stops and joins the thread. If the caller is that thread, leaves it to the library.
  ~OwnedThread();

  /// Returns whether the caller is this thread.
  bool is_current() const;
  /// Requests the end of the thread through Options::stop.
  void stop();
  /// Waits until the thread has ended; stop() or another cause must end it. Returns the exception
  /// that ended it, or a timeout, after which join() may be called again.
  Status join(Deadline deadline = Deadline::never());
  /// Leaves the thread to the library, which joins it after its end, at unload at the latest.
  void leave_to_library();

 private:
  struct State;
  class Registry;
  explicit OwnedThread(std::shared_ptr<State> state);
  std::shared_ptr<State> state_;
};

}  // namespace oriel
