// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "oriel/error.hpp"

#include "base/bytes.hpp"
#include "base/deadline.hpp"
#include "base/event_loop.hpp"
#include "base/task.hpp"
#include "comm/device/device.hpp"
#include "comm/keys/direct_windows.hpp"
#include "comm/network/rank_network.hpp"
#include "comm/network/rank_routes.hpp"
#include "comm/network/soft_port.hpp"
#include "net/process/nic_process.hpp"

namespace oriel::comm {

/// All software NICs of a rank, and what they need of its device to serve its kernels. Without
/// backup paths the first one reaches all peers; else which peers by which path depends on the
/// interfaces of both (comm/paths/path_pairs.hpp).
class SoftPorts {
 public:
  /// Has the process that copies for them begin; it may take a while to be there.
  explicit SoftPorts(const NetworkOptions& options);
  /// Waits for that process. Without it this one copies, which ranks need not do alike.
  Task<Status> await_process(EventLoop& loop, Deadline deadline);
  /// Makes the NICs and their fabric wires.
  Status make(const RankRoutes& routes);
  Status make_sleepers();

  std::size_t size() const { return ports_.size(); }
  SoftPort& at(std::size_t index) const { return *ports_[index]; }
  bool has_backups() const { return ports_.size() > 1; }
  bool on_gpu() const { return memory_.mover != nullptr; }
  /// Returns the source of memory for queues of a GPU; null on the host.
  net::QueuePagesSource* pages() const { return memory_.pages.get(); }
  NicView process_view() const { return {memory_.process.get(), &options_.device->memory()}; }
  /// By NIC, the addresses of fabric wires; empty for one that reaches no peer.
  std::vector<Bytes> fabric_addresses() const;

  void end_sending();
  /// Does what peers have asked for until now, and is deaf to what they ask from now on.
  void end_receiving();
  bool has_failed() const;
  void stop_threads();
  /// Answers what peers have asked for and wait for, for a bounded time.
  void answer_last();

 private:
  Status check_backup_provider(std::size_t at, const std::vector<std::string>& interfaces) const;

  const NetworkOptions& options_;
  std::shared_ptr<net::NicProcess> starting_;  // until make()
  NicMemory memory_;
  std::mutex mover_mutex_;  // of memory_.mover, where several NICs share it
  std::vector<std::unique_ptr<SoftPort>> ports_;
};

}  // namespace oriel::comm
