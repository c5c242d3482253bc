// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "oriel/error.hpp"

#include "base/settings.hpp"
#include "base/spare_descriptor.hpp"
#include "boot/session/session.hpp"
#include "comm/communicator/exchange_planner.hpp"
#include "comm/device/device.hpp"
#include "comm/device/topology.hpp"
#include "comm/device/window_sink.hpp"
#include "comm/keys/network_windows.hpp"
#include "comm/network/rank_network.hpp"
#include "comm/request/flight_recorder.hpp"
#include "kernels/plan/choice.hpp"
#include "kernels/plan/exchange.hpp"
#include "kernels/plan/hierarchy_plan.hpp"
#include "window/registration/window_manager.hpp"

namespace oriel::comm {

/// Options that a user chose for one communicator (ncclConfig_t).
struct CommunicatorOptions {
  bool blocking = true;
  int min_ctas = 0;                   ///< 0: no limit
  int max_ctas = 0;                   ///< 0: no limit
  bool copy_engines = false;          ///< the user wants them where they suit a collective
  bool graph_mixing = true;           ///< launches of graphs are ordered
  bool graph_stream_ordering = true;  ///< captured calls of different streams are ordered
  std::string name;                   ///< for errors and the log; may be empty
};

/// Parts of one rank of a communicator. CommunicatorStart makes the parts from `session` on.
/// Afterwards they do not change, except the atomic members and the network, which a device
/// communicator may add. Only the atomic members may be changed by any thread.
///
/// Members are destroyed from the last to the first. `windows` goes before `network_windows`, which
/// holds its keys, and before `notices`, with which its users wait. `session`, which holds the
/// links to the other ranks, outlives all members below it. ~Communicator destroys `windows` and
/// then `network` before all other members.
struct CommunicatorParts {
  std::shared_ptr<SpareDescriptor> spare_descriptor = SpareDescriptor::hold();
  Device* device = nullptr;
  kernels::Backend backend = kernels::Backend::host;  // that of `device`, without a virtual call
  const Settings* settings = nullptr;
  CommunicatorOptions options{};

  std::unique_ptr<boot::Session> session{};
  Topology topology{};
  TeamFacts team_facts{};
  int largest_team = 1;  // size of the largest LSA team
  std::optional<boot::Group> team{};

  std::unique_ptr<NoticeMemory> notices{};
  /// Null unless needs_network(). The sink's objects point to its tables.
  std::unique_ptr<NetworkWindows> network_windows{};
  std::unique_ptr<PooledWindowSink> sink{};
  std::unique_ptr<window::WindowManager> windows{};
  std::unique_ptr<Executor> executor{};
  std::unique_ptr<Network> network{};
  std::atomic<Network*> live_network{nullptr};  // equals `network`; for the monitor's thread
  std::optional<Error> no_network{};            // reason why other teams cannot be reached

  std::optional<kernels::ChoiceTable> own_table{};  // read from ORIEL_TABLE
  kernels::Overrides overrides{};
  int least_ctas = 0;  // CTAs of a call on GPUs, by the largest minCTAs of a rank; 0: no limit
  kernels::ScratchLayout layout{};
  kernels::HierarchyLayout hierarchy{};        // follows `layout` in the scratch memory
  std::optional<ExchangePlanner> exchanges{};  // uses the last part of it
  kernels::GroupingTables teams{};  // groups the ranks by LSA team; `singles`: one by one
  kernels::GroupingTables singles{};
  shadow::OwnedShadow groupings{};  // tables of `teams`, then of `singles`, for kernels of a GPU
  void* scratch = nullptr;          // from Device::make_scratch
  window::RegisteredWindow control{};
  std::size_t slot_bytes = 0;
  std::vector<kernels::PeerProcess> processes{};  // CPU ranks only; by index in the team
  std::uint64_t probed_word = 0;                  // see ReadingProbe

  std::unique_ptr<FlightRecorder> flight{};
  std::atomic<bool> has_failed{false};     // set by FailureWatch
  std::atomic<bool> has_finalized{false};  // no further calls are accepted
};

inline bool on_host(const CommunicatorParts& parts) {
  return parts.backend == kernels::Backend::host;
}

/// Returns the table that chooses algorithms.
inline const kernels::ChoiceTable& table_of(const CommunicatorParts& parts) {
  return parts.own_table ? *parts.own_table : kernels::ChoiceTable::built_in();
}

}  // namespace oriel::comm
