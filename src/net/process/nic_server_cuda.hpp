// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>

#include "oriel/error.hpp"

#include "base/cuda_scope.hpp"
#include "base/deadline.hpp"
#include "base/fd.hpp"
#include "net/process/nic_process_message.hpp"

namespace oriel::net {

class NicServerChannel;
class NicServerRegion;

/// The other end of a NicProcess: executes the copies of a rank's streams on one GPU. It polls
/// their rings while commands come. After half a millisecond without commands it sleeps on
/// descriptors. Everything from the socket and the rings is checked. After an invalid command or a
/// failed driver call, a stream does nothing more and reports the error.
///
/// Copies within its own GPU go through pinned memory. The driver would execute them on the engine
/// that runs kernels, which the rank's kernels occupy until their time slice ends. One thread runs
/// the server.
class NicServer {
 public:
  /// `socket` is one end of a pair; the rank has the other end.
  explicit NicServer(OwnedFd socket);
  ~NicServer();
  NicServer(const NicServer&) = delete;
  NicServer& operator=(const NicServer&) = delete;

  /// Returns when the socket's other end was closed, or the process that made the pair has ended.
  /// Returns an error if the first request failed or a message was no request.
  Status run();

 private:
  Status serve(const NicRequest& request, OwnedFd descriptor);
  Status serve_hello(const nic_request::Hello& hello, OwnedFd descriptor);
  Status serve_open(const nic_request::Open& open, OwnedFd descriptor);
  Status serve_close(const nic_request::Close& close);
  Status serve_add(const nic_request::Add& add, OwnedFd descriptor);
  Status serve_remove(const nic_request::Remove& remove);
  Result<CUdevice> find_gpu(const GpuUuid& wanted) const;
  Status answer(const Status& outcome);
  /// Serves a request if there is one, and checks whether the rank still exists; returns false if
  /// it does not.
  Result<bool> poll_sockets(bool may_sleep);
  Result<bool> take_request();
  bool turn_channels();
  int sleep_milliseconds();
  void set_asleep(bool asleep);
  bool has_commands() const;

  const OwnedFd socket_;
  OwnedFd rank_;  // pidfd of the rank's process
  OwnedFd wake_event_;
  std::optional<PrimaryContext> context_;
  std::optional<CudaScope> scope_;  // on the server's thread, from the hello on
  CUdevice device_ = 0;
  std::map<std::uint32_t, std::unique_ptr<NicServerRegion>> regions_;
  std::map<std::uint32_t, std::unique_ptr<NicServerChannel>> channels_;
};

}  // namespace oriel::net
