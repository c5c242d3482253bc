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

/// The other end of a NicProcess: copies on one GPU what the streams of a rank's process ask for.
/// It looks at their rings all the time while something comes, and sleeps on descriptors after half
/// a millisecond without. What comes by socket and ring is checked; a ring in which something else
/// was found, and a stream of which a call of the driver's has failed, do nothing more and say why.
///
/// Copies between memory of its own GPU go by way of pinned memory: within a GPU they would be done
/// by the engine that runs kernels, which the rank's kernels have until their time slice ends.
/// One thread runs it.
class NicServer {
 public:
  /// `socket` is the end of a pair whose other end the rank has.
  explicit NicServer(OwnedFd socket);
  ~NicServer();
  NicServer(const NicServer&) = delete;
  NicServer& operator=(const NicServer&) = delete;

  /// Returns when the socket's other end has been closed, or the process that made the pair has
  /// ended; an error if the first request was not served, or something came that is no request.
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
  /// Takes what the socket has, and looks whether the rank is there. False: it is not.
  Result<bool> look_outside(bool may_sleep);
  Result<bool> take_request();
  bool turn_channels();
  int sleep_milliseconds();
  void set_asleep(bool asleep);
  bool has_commands() const;

  const OwnedFd socket_;
  OwnedFd rank_;  // a pidfd of the rank's process
  OwnedFd bell_;
  std::optional<PrimaryContext> context_;
  std::optional<CudaScope> scope_;  // of the thread that runs it, from the hello on
  CUdevice device_ = 0;
  std::map<std::uint32_t, std::unique_ptr<NicServerRegion>> regions_;
  std::map<std::uint32_t, std::unique_ptr<NicServerChannel>> channels_;
};

}  // namespace oriel::net
