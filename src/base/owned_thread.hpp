// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>

#include "oriel/error.hpp"

#include "base/deadline.hpp"

namespace oriel {

/// A thread of the library. All signals are blocked in it, and it does not disturb stream captures
/// (RelaxedCapture). An exception that leaves its body ends the thread, never the process.
/// Move-only.
///
/// When the library is unloaded, or exit() is called, each thread that still runs is stopped and
/// joined, whoever owns it; so what a body uses must not be destroyed as a static object. In a
/// forked child the thread does not exist: its owner may be destroyed there, and does nothing.
class OwnedThread {
 public:
  struct Options {
    const char* name = "oriel";  ///< as debuggers show it; at most 15 bytes
    std::function<void()> body;
    /// Makes the body return soon; may be empty if it does so in any case. Called by the owner or
    /// at unload, from any thread, perhaps more than once, until the thread has been joined. It
    /// must not take a lock that the owner holds while it joins.
    std::function<void()> stop;
    /// Called in the thread with the reason if an exception has left the body; may be empty.
    std::function<void(const Error&)> failed;
  };
  /// Fails where the system has no thread to give.
  static Result<OwnedThread> start(Options options);

  OwnedThread() = default;
  OwnedThread(OwnedThread&&) noexcept = default;
  OwnedThread& operator=(OwnedThread&& other) noexcept;
  /// Stops and joins the thread. If this is the thread itself, it is left to the library.
  ~OwnedThread();

  /// Whether the caller is this thread.
  bool is_current() const;
  /// Asks the thread to end, by Options::stop.
  void stop();
  /// Waits until the thread has ended, which stop() or something else has to bring about. Returns
  /// the exception that ended it, or a timeout, after which the thread can be joined again.
  Status join(Deadline deadline = Deadline::never());
  /// Leaves the thread to the library, which joins it some time after it has ended, at unload at
  /// the latest.
  void leave_to_library();

 private:
  struct State;
  class Registry;
  explicit OwnedThread(std::shared_ptr<State> state);
  std::shared_ptr<State> state_;
};

}  // namespace oriel
