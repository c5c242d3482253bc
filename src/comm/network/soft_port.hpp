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
#include "net/copy/copy_engine_share.hpp"
#include "net/fabric/fabric_sleeper.hpp"
#include "net/fabric/wire_fabric.hpp"
#include "net/soft/nic_soft.hpp"
#include "net/soft/nic_thread.hpp"

namespace oriel::comm {

/// One software NIC of a rank. If it reaches peers by libfabric, it also has a fabric wire and the
/// wire's thread. The buffers of a fabric wire cost memory once used. There are kFabricReceives of
/// kFabricPieceBytes, or 8 per peer if that is more, at most 4096.
class SoftPort {
 public:
  static constexpr std::uint32_t kFabricPieceBytes = std::uint32_t{256} << 10;
  static constexpr std::uint32_t kFabricReceives = 64;
  /// Returns the number of message buffers of a wire to `peers` peers, each way: at least `least`.
  static std::uint32_t fabric_buffers(std::size_t peers, std::uint32_t least);

  SoftPort();
  /// Sets the engine of a GPU. Call it before any registration. `shared`: the mutex of all NICs
  /// that use the engine; null if this NIC is the only one.
  void serve_gpu(net::CopyEngine& engine, std::mutex* shared);
  /// Opens the fabric wire over `interface`. An empty name stands for the choice of
  /// ORIEL_SOCKET_IFNAME.
  Status open_fabric(const NetworkOptions& options, const std::string& interface,
                     const std::vector<int>& peers);

  /// Makes the sleeper. Call it before any thread starts: each thread may wake all of a rank's
  /// NICs.
  Status make_sleeper();
  /// Starts a thread that drives the NIC and sleeps until the fabric wire has an event. `is_driven`
  /// returns whether other threads drive the NIC as well.
  Status start_thread(std::function<bool()> progress, std::function<bool()> is_driven,
                      const std::vector<int>& cpus);
  void stop_thread() { thread_.reset(); }
  void wake();

  net::NicSoft& nic() { return nic_; }
  SoftWindowNic& windows() { return windows_; }
  /// Returns the wire, owned by the NIC; null if no peer is reached by libfabric.
  net::WireFabric* fabric() const { return fabric_; }
  std::uint32_t fabric_wire() const { return fabric_wire_; }

 private:
  std::optional<net::CopyEngineShare> engine_;  // for a GPU with several NICs
  net::NicSoft nic_;
  SoftWindowNic windows_;
  net::WireFabric* fabric_ = nullptr;
  std::uint32_t fabric_wire_ = 0;
  std::optional<net::FabricSleeper> sleeper_;
  std::optional<net::NicThread> thread_;
};

}  // namespace oriel::comm
