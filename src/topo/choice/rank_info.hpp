// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "oriel/error.hpp"

#include "base/bytes.hpp"
#include "topo/choice/path_facts.hpp"
#include "topo/model/machine.hpp"
#include "topo/model/node_identity.hpp"

namespace oriel::topo {

/// Location of a rank's windows. The values equal those of window::MemoryKind, which this module
/// must not include.
enum class DeviceKind : std::uint8_t { host = 1, cuda = 2 };

/// UUID of a GPU, as the driver reports it; equal in every process of the machine.
using DeviceUuid = std::array<std::byte, 16>;

/// Knowledge of a rank's process about a GPU of its machine, relative to the rank's own GPU. CUDA
/// shows the GPU, or it is hidden and NVML reported it.
struct SeenDevice {
  DeviceUuid uuid{};
  bool reachable = false;  ///< the rank's GPU can map its memory
  bool visible = true;     ///< to CUDA in the rank's process
  PathFacts path{};        ///< from the rank's GPU to this one

  bool operator==(const SeenDevice&) const = default;
};

/// Information that one rank sends to all others once, when a communicator is created.
struct RankInfo {
  NodeIdentity node;
  /// Hash of the machine's identity and boot, even if the user has named the node. 0: the machine
  /// does not report its boot.
  std::uint64_t machine = 0;
  std::uint64_t process = 0;  ///< random number of its process
  std::int32_t pid = 0;       ///< in the rank's own PID namespace; see shares_pids()
  /// Inode of the PID namespace, or 0 if it is not known.
  std::uint64_t pid_namespace = 0;
  std::uint32_t uid = 0;  ///< effective user; unix sockets between users are refused
  DeviceKind kind = DeviceKind::host;
  /// Memory of its device, or of its machine: the most that it can register. 0: not known.
  std::uint64_t memory_bytes = 0;
  /// OS number of the NUMA node near its GPU; for a rank on the host, of the node that its thread
  /// is bound to. -1: not known, or bound to none.
  std::int32_t numa = -1;
  /// Bandwidth class between the rank and host memory (bandwidth_class()). It is the class of its
  /// GPU's PCIe link, or of the memory of its NUMA node if the firmware reports it.
  std::uint8_t host_class = 0;
  /// Bandwidth class of the fastest network port of its machine. Read only if a rank is reached
  /// over the network (encode_supplement()); 0 until then.
  std::uint8_t network_class = 0;

  // Fields below are empty for ranks on the host.
  std::int32_t device = -1;  ///< CUDA ordinal in the rank's process
  std::string pci_id;        ///< such as "0000:1b:00.0"
  DeviceUuid uuid{};
  /// The process can export and import the device's memory as fabric handles.
  bool fabric_handles = false;
  std::optional<FabricClique> fabric;
  /// Bandwidth class of all NVLinks of the device together.
  std::uint8_t links_class = 0;
  /// Number of CTAs of Oriel's kernels that are guaranteed to be resident on the device at once.
  std::uint16_t resident_ctas = 0;
  /// Maximum number of CTAs per call that the rank's user allows; 0: the default limit.
  std::uint16_t cta_limit = 0;
  /// Minimum number of CTAs per call that the rank's user wishes; 0: none.
  std::uint16_t cta_least = 0;
  /// Maximum number of ranks that share the device in an existing communicator of the process; 1 if
  /// there is none.
  std::uint16_t known_sharers = 0;
  /// The user forbids GPUs to map another rank's memory (ORIEL_P2P_DISABLE).
  bool keeps_apart = false;
  /// The user prefers copy engines for collectives that they support (NCCL_CTA_POLICY_ZERO).
  bool wants_copy_engines = false;
  /// CUDA hides GPUs from the process, and NVML, which may know them, has not been queried. A query
  /// is slow and useful only if another rank is on a hidden GPU.
  bool may_learn_more = false;
  /// Devices that the process knows, including its own; ascending by UUID, without duplicates.
  std::vector<SeenDevice> seen;

  bool operator==(const RankInfo&) const = default;
};

/// Additional information requested from a rank if the first exchange leaves it open (RankPaths).
struct Wanted {
  bool hidden_gpus = false;  ///< reach of GPUs that CUDA hides from the rank
  bool network = false;      ///< bandwidth of its network

  bool operator==(const Wanted&) const = default;
};

/// Returns the info of a rank of this process that keeps its windows on the host.
RankInfo host_rank_info(const NodeIdentity& node);

/// Returns whether the PID of `other` names the same process for `own`: both share a machine and a
/// PID namespace. Containers that share a network may have different PID namespaces. Ranks of one
/// machine that the user has named as several nodes may still share one.
bool shares_pids(const RankInfo& own, const RankInfo& other);

/// Returns the knowledge of `own`'s process about the device with this UUID; null if there is none.
const SeenDevice* find_seen(const RankInfo& own, const DeviceUuid& uuid);

/// Encodes `info` as a message. Omits devices beyond kSeenDevicesMost, which then count as unknown.
Bytes encode(const RankInfo& info);

/// Decodes a message and checks every field: valid kinds, and counts, numbers and texts within
/// their limits. Fields must not contradict each other, and no bytes may remain. The error names
/// the wrong field but not the rank.
Result<RankInfo> decode_rank_info(ByteView message);

/// Encodes the wanted parts of `info` as a message.
Bytes encode_supplement(const RankInfo& info, Wanted wanted);

/// Adds a supplement to the info of its sender; `wanted` is what the sender was asked for. Makes
/// the checks of decode_rank_info().
Status add_supplement(RankInfo& info, ByteView message, Wanted wanted);

inline constexpr std::size_t kSeenDevicesMost = 256;
inline constexpr std::uint16_t kCtasMost = 1024;
inline constexpr std::size_t kPciIdMostBytes = 31;
inline constexpr std::int32_t kNumaNumberMost = 1 << 16;
inline constexpr std::uint8_t kHopsMost = 64;
/// Rounding it up to a slot's unit and adding a few such values does not overflow.
inline constexpr std::uint64_t kMemoryMostBytes = std::uint64_t{1} << 56;

}  // namespace oriel::topo
