// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "oriel/error.hpp"

#include "comm/keys/window_nic_soft.hpp"
#include "comm/network/rank_network.hpp"
#include "net/copy/mover_share.hpp"
#include "net/fabric/fabric_sleeper.hpp"
#include "net/fabric/wire_fabric.hpp"
#include "net/soft/nic_soft.hpp"
#include "net/soft/nic_thread.hpp"

namespace oriel::comm {

/// One software NIC of a rank, with its wire over libfabric, if it reaches anybody by that, and the
/// wire's thread. A fabric wire has buffers that cost memory once used: kFabricReceives of
/// kFabricPieceBytes, or 8 for each peer if those are more.
class SoftPort {
 public:
  static constexpr std::uint32_t kFabricPieceBytes = std::uint32_t{256} << 10;
  static constexpr std::uint32_t kFabricReceives = 64;
  /// Returns the number of messages for which a wire to so many peers has room, each way; at least
  /// `least`.
  static std::uint32_t fabric_buffers(std::size_t peers, std::uint32_t least);

  SoftPort();
  /// Before anything is registered. `shared`: held by all NICs that use the mover; null if no other
  /// one does.
  void serve_gpu(net::DataMover& mover, std::mutex* shared);
  /// Over `interface`; an empty name stands for what ORIEL_SOCKET_IFNAME asks for.
  Status open_fabric(const NetworkOptions& options, const std::string& interface,
                     const std::vector<int>& peers);

  /// Before any thread: all of a rank's NICs may be woken by each of them.
  Status make_sleeper();
  /// Drives the NIC by a thread that sleeps until the fabric wire has something. `is_driven` says
  /// whether others drive it as well.
  Status start_thread(std::function<bool()> progress, std::function<bool()> is_driven,
                      const std::vector<int>& cpus);
  void stop_thread() { thread_.reset(); }
  void wake();

  net::NicSoft& nic() { return nic_; }
  SoftWindowNic& windows() { return windows_; }
  /// The NIC's; null where no peer is reached by it.
  net::WireFabric* fabric() const { return fabric_; }
  std::uint32_t fabric_wire() const { return fabric_wire_; }

 private:
  std::optional<net::MoverShare> mover_;  // of a GPU's NIC that is one of several
  net::NicSoft nic_;
  SoftWindowNic windows_;
  net::WireFabric* fabric_ = nullptr;
  std::uint32_t fabric_wire_ = 0;
  std::optional<net::FabricSleeper> sleeper_;
  std::optional<net::NicThread> thread_;
};

}  // namespace oriel::comm
