// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <variant>
#include <vector>

#include <sys/types.h>

#include "oriel/error.hpp"

#include "base/deadline.hpp"
#include "base/fd.hpp"
#include "net/copy/copy_stream.hpp"
#include "net/process/nic_process_message.hpp"

namespace oriel::net {

/// Handle by which GPU memory is exported: a file descriptor or a fabric handle.
using AllocationHandle = std::variant<OwnedFd, FabricBytes>;

/// A separate process that copies on one GPU for the software NICs of this process. CUDA driver
/// calls of this process may hold locks while they wait for a kernel; cudaFree is an example. The
/// other process takes none of these locks, so copies continue whatever the application calls.
///
/// The process runs the program oriel-nic. posix_spawn starts the program, which forks and exits,
/// so that the process is no child of this one. The application never waits for it and never sees
/// its end. It ends with this object, and by itself when this process ends. It has a context on the
/// GPU. The context takes about 500 MiB of GPU memory and a second to create, so all communicators
/// share one process.
///
/// show() makes GPU memory accessible to the process. Thread-safe.
class NicProcess {
 public:
  struct Options {
    std::string program;  ///< path of the program
    GpuUuid gpu{};
    std::vector<int> cpus;  ///< processors of the process; empty: this thread's
  };
  /// Starts the process; does not wait until it is ready.
  static Result<std::shared_ptr<NicProcess>> start(const Options& options);
  /// Uses the process at the other end of this socket.
  static Result<std::shared_ptr<NicProcess>> join(OwnedFd socket, const Options& options);
  /// Finds the program: `named` if not empty, else beside the file that contains this code or in an
  /// installation folder.
  static Result<std::string> find_program(const std::string& named);
  ~NicProcess();
  NicProcess(const NicProcess&) = delete;
  NicProcess& operator=(const NicProcess&) = delete;

  /// Returns whether await_ready() would return at once.
  bool has_answered() const;
  /// Waits until the process has opened its GPU; the error says why it cannot.
  Status await_ready(Deadline deadline);

  /// Opens a stream of the process. The stream keeps the process alive.
  static Result<std::unique_ptr<CopyStream>> open_stream(std::shared_ptr<NicProcess> process,
                                                         std::uint32_t slots,
                                                         std::uint32_t slot_bytes);

  /// Exports the whole allocation that is mapped here at `base`. If it was exported before, only
  /// counts another user. Waits for the process, for some milliseconds.
  Status show(const std::byte* base, std::size_t bytes, AllocationHandle handle);
  /// Drops one user of an allocation; the last one unmaps it. No copy of it may be in flight then.
  void hide(const std::byte* base) noexcept;

  /// An address in the terms of the process.
  struct Place {
    std::uint32_t region = 0;  ///< 0: not shown
    std::uint64_t offset = 0;
    std::size_t left = 0;  ///< bytes up to the end of the allocation
  };
  Place find(const std::byte* at) const;

  /// Returns an error if the process has ended. Sends no request.
  Status poll();
  /// Wakes the process.
  void wake() const;
  /// Ends the process: shuts the socket down, and kills the process if it still runs after 3 s.
  /// Does not wait for a process that has never answered.
  void end() noexcept;
  /// Returns the sender of the first answer, as the kernel reports it; 0 before that.
  pid_t pid() const;

 private:
  friend class NicProcessStream;
  struct Known {
    std::size_t bytes;
    std::uint32_t region;
    int holders;
  };
  NicProcess(OwnedFd socket, OwnedFd wake_event)
      : socket_(std::move(socket)), wake_event_(std::move(wake_event)) {}
  static Result<OwnedFd> spawn(const std::string& program);
  Status send(const NicRequest& request, const OwnedFd* descriptor, Deadline deadline);
  Status give_up(Error why);
  Status take_answer(Deadline deadline);
  /// Sends a request and waits for the answer. Called with the mutex.
  Status ask(const NicRequest& request, const OwnedFd* descriptor);
  /// Closes a stream. No copy of the stream is in flight when the call returns.
  void close_channel(std::uint32_t channel) noexcept;

  const OwnedFd socket_;
  const OwnedFd wake_event_;  // eventfd that wakes the process
  mutable std::mutex mutex_;  // guards the socket and the members below
  bool has_hello_answer_ = false;
  Status error_;  // first error of the socket, after which messages are unreliable
  pid_t pid_ = 0;
  OwnedFd pidfd_;
  std::uint32_t last_number_ = 0;
  mutable std::mutex known_mutex_;
  std::map<const std::byte*, Known> known_;  // by address in this process
};

}  // namespace oriel::net
