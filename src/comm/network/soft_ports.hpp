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

/// All software NICs of a rank, and the resources of its device that they need to serve its
/// kernels. Without backup paths the first NIC reaches all peers. With backup paths the interfaces
/// of both ranks decide which NIC reaches which peer (comm/paths/path_pairs.hpp).
class SoftPorts {
 public:
  /// Starts the process that copies for the NICs; it may take a while to become ready.
  explicit SoftPorts(const NetworkOptions& options);
  /// Waits for that process. If it fails, this process copies; ranks may differ in this.
  Task<Status> await_process(EventLoop& loop, Deadline deadline);
  /// Creates the NICs and their fabric wires.
  Status make(const RankRoutes& routes);
  Status make_sleepers();

  std::size_t size() const { return ports_.size(); }
  SoftPort& at(std::size_t index) const { return *ports_[index]; }
  bool has_backups() const { return ports_.size() > 1; }
  bool on_gpu() const { return memory_.engine != nullptr; }
  /// Returns the source of memory for queues of a GPU; null on the host.
  net::QueuePagesSource* pages() const { return memory_.pages.get(); }
  NicView process_view() const { return {memory_.process.get(), &options_.device->memory()}; }
  /// Returns by NIC the addresses of fabric wires; empty for a NIC that reaches no peer.
  std::vector<Bytes> fabric_addresses() const;

  void end_sending();
  /// Serves the requests that have arrived, and ignores later ones.
  void end_receiving();
  bool has_failed() const;
  void stop_threads();
  /// Answers outstanding requests of peers, for a bounded time.
  void answer_last();

 private:
  Status check_backup_provider(std::size_t at, const std::vector<std::string>& interfaces) const;

  const NetworkOptions& options_;
  std::shared_ptr<net::NicProcess> starting_;  // null after make()
  NicMemory memory_;
  std::mutex engine_mutex_;  // guards memory_.engine if several NICs share it
  std::vector<std::unique_ptr<SoftPort>> ports_;
};

}  // namespace oriel::comm
