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

/// How an allocation of a GPU's is passed on.
using AllocationHandle = std::variant<OwnedFd, FabricBytes>;

/// A process of its own that copies for the software NICs of this one on one GPU. Its calls of the
/// CUDA driver take none of the locks under which this process's may wait for a kernel, such as
/// cudaFree's, so that copies go on whatever the application calls.
///
/// It is the program oriel-nic, which is started with posix_spawn and goes on as a process that is
/// no child of this one: the application never waits for it, nor sees it end. It ends when this
/// object does, and by itself when this process does. It has a context on the GPU, which takes
/// about 500 MiB of the GPU's memory and a second to make, so there is one for all communicators.
///
/// Memory that it is to reach has to be shown to it. Thread-safe.
class NicProcess {
 public:
  struct Options {
    std::string program;  ///< the path
    GpuUuid gpu{};
    std::vector<int> cpus;  ///< where it runs; empty: where this thread may
  };
  /// Returns once it has been started, not when it is ready.
  static Result<std::shared_ptr<NicProcess>> start(const Options& options);
  /// With whom the other end of this socket belongs to.
  static Result<std::shared_ptr<NicProcess>> join(OwnedFd socket, const Options& options);
  /// The program beside the file that this code is in, or in one of the folders where one is
  /// installed; `named` wins, if not empty.
  static Result<std::string> find_program(const std::string& named);
  ~NicProcess();
  NicProcess(const NicProcess&) = delete;
  NicProcess& operator=(const NicProcess&) = delete;

  /// Whether await_ready() would return at once.
  bool has_answered() const;
  /// Waits until it has its GPU; the error says why it cannot.
  Status await_ready(Deadline deadline);

  /// A stream of it, which holds it.
  static Result<std::unique_ptr<CopyStream>> open_stream(std::shared_ptr<NicProcess> process,
                                                         std::uint32_t slots,
                                                         std::uint32_t slot_bytes);

  /// The allocation that is mapped here at `base`, as a whole; counted if it is known. Waits for
  /// the process, some milliseconds.
  Status show(const std::byte* base, std::size_t bytes, AllocationHandle handle);
  /// Nothing of it may be moving any more.
  void hide(const std::byte* base) noexcept;

  /// Where an address is for the process.
  struct Place {
    std::uint32_t region = 0;  ///< 0: nowhere
    std::uint64_t offset = 0;
    std::size_t left = 0;  ///< bytes up to the end of the allocation
  };
  Place find(const std::byte* at) const;

  /// Whether it still runs, as far as can be told without asking it.
  Status look();
  /// Wakes it.
  void wake() const;
  /// Returns once it runs no more: at once if it has ended, else by ending it.
  void end() noexcept;
  /// Of whoever has answered first, as the kernel says; 0 before that.
  pid_t pid() const;

 private:
  friend class NicProcessStream;
  struct Known {
    std::size_t bytes;
    std::uint32_t region;
    int holders;
  };
  NicProcess(OwnedFd socket, OwnedFd bell) : socket_(std::move(socket)), bell_(std::move(bell)) {}
  static Result<OwnedFd> spawn(const std::string& program);
  Status say(const NicRequest& request, const OwnedFd* descriptor, Deadline deadline);
  Status give_up(Error why);
  Status take_answer(Deadline deadline);
  /// Says something and waits for the answer. Under the mutex.
  Status ask(const NicRequest& request, const OwnedFd* descriptor);
  /// Nothing of the stream's is being done any more when it returns.
  void close_channel(std::uint32_t channel) noexcept;

  const OwnedFd socket_;
  const OwnedFd bell_;        // an eventfd that wakes the process
  mutable std::mutex mutex_;  // of the socket, and below
  bool has_greeted_ = false;
  Status trouble_;  // of the socket: what is said by it would not be understood
  pid_t pid_ = 0;
  OwnedFd pidfd_;
  std::uint32_t last_number_ = 0;
  mutable std::mutex known_mutex_;
  std::map<const std::byte*, Known> known_;  // allocations, by where they begin here
};

}  // namespace oriel::net
