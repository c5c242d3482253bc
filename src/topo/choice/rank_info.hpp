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

/// Where a rank's windows live. The values are those of window::MemoryKind, which this module may
/// not know.
enum class DeviceKind : std::uint8_t { host = 1, cuda = 2 };

/// The identity of a GPU, as the driver tells it; the same in every process of the machine.
using DeviceUuid = std::array<std::byte, 16>;

/// What a rank's process knows of a GPU of its machine, as seen from the rank's own: one that CUDA
/// shows it, or one that is hidden from it and that NVML told of.
struct SeenDevice {
  DeviceUuid uuid{};
  bool reachable = false;  ///< the rank's GPU can map its memory
  bool visible = true;     ///< to CUDA in the rank's process
  PathFacts path{};        ///< from the rank's GPU to this one

  bool operator==(const SeenDevice&) const = default;
};

/// What one rank tells all others about its place, once, when a communicator begins.
struct RankInfo {
  NodeIdentity node;
  /// A hash of what names the machine and its boot, also where the user has named the node; 0 where
  /// the machine does not tell its boot.
  std::uint64_t machine = 0;
  std::uint64_t process = 0;  ///< the random number of its process
  std::int32_t pid = 0;       ///< in the rank's own PID namespace; see shares_pids()
  /// The inode of that namespace, or 0 where it cannot be told.
  std::uint64_t pid_namespace = 0;
  std::uint32_t uid = 0;  ///< the effective user; unix sockets between users are refused
  DeviceKind kind = DeviceKind::host;
  /// Of its device, or of its machine: the most that it can register. 0 where that is not known.
  std::uint64_t memory_bytes = 0;
  /// The system's number of the NUMA node beside its GPU; for a rank on the host, of the one that
  /// its thread is bound to. -1: not known, or bound to none.
  std::int32_t numa = -1;
  /// Classes of bandwidth, see bandwidth_class(). Between the rank and host memory: of its GPU's
  /// PCIe link, or of the memory of its NUMA node where the firmware tells.
  std::uint8_t host_class = 0;
  /// Of the fastest network port of its machine. Looked for only where a rank is reached over the
  /// network (RankSupplement); 0 until then.
  std::uint8_t network_class = 0;

  // The rest is empty for ranks on the host.
  std::int32_t device = -1;  ///< CUDA ordinal inside the rank's process
  std::string pci_id;        ///< such as "0000:1b:00.0"
  DeviceUuid uuid{};
  /// The process can export and import the device's memory by fabric handles.
  bool fabric_handles = false;
  std::optional<FabricClique> fabric;
  /// See bandwidth_class(): what all NVLinks of the device carry together.
  std::uint8_t links_class = 0;
  /// CTAs of our kernels that are sure to be resident on the device at once.
  std::uint16_t resident_ctas = 0;
  /// The most CTAs that the user of the rank allows a call; 0 where that is left open.
  std::uint16_t cta_limit = 0;
  /// The most ranks that share the device in a communicator that the process has already; 0: none.
  std::uint16_t known_sharers = 0;
  /// The user wants no GPU to map another rank's memory (ORIEL_P2P_DISABLE).
  bool keeps_apart = false;
  /// The user wants copy engines for collectives where they can carry them out
  /// (NCCL_CTA_POLICY_ZERO).
  bool wants_copy_engines = false;
  /// There are GPUs that CUDA hides from its process, and NVML, which may know of them, has not
  /// been asked: that takes long, and is of use only if another rank is on one of them.
  bool may_learn_more = false;
  /// The devices that the process knows something of, its own among them; ascending by UUID, each
  /// once.
  std::vector<SeenDevice> seen;

  bool operator==(const RankInfo&) const = default;
};

/// What a rank tells beyond that, where what all have told first leaves it open (RankPaths).
struct Wanted {
  bool hidden_gpus = false;  ///< its reach of GPUs that CUDA hides from it
  bool network = false;      ///< the bandwidth of its network

  bool operator==(const Wanted&) const = default;
};

/// The info of a rank of this process that keeps its windows on the host.
RankInfo host_rank_info(const NodeIdentity& node);

/// Whether the pid of `other` names the same process to `own`. Where containers share a network
/// they need not share it; where the user makes one machine several nodes they still do.
bool shares_pids(const RankInfo& own, const RankInfo& other);

/// What the process of `own` knows of the device with this UUID; null if nothing.
const SeenDevice* find_seen(const RankInfo& own, const DeviceUuid& uuid);

/// The message that carries `info`; devices beyond kSeenDevicesMost are left out, of which nothing
/// is known then.
Bytes encode(const RankInfo& info);

/// Takes a message apart and checks every field: kinds that exist, counts, numbers and texts within
/// their limits, nothing that contradicts another field, nothing left over. The error says which
/// field is wrong; it does not know the rank.
Result<RankInfo> decode_rank_info(ByteView message);

/// The message that carries what of `info` was wanted.
Bytes encode_supplement(const RankInfo& info, Wanted wanted);

/// Puts what such a message says into the info of the rank that has sent it, which says what was
/// wanted of it. Checked as decode_rank_info() checks.
Status add_supplement(RankInfo& info, ByteView message, Wanted wanted);

inline constexpr std::size_t kSeenDevicesMost = 256;
inline constexpr std::uint16_t kCtasMost = 1024;
inline constexpr std::size_t kPciIdMostBytes = 31;
inline constexpr std::int32_t kNumaNumberMost = 1 << 16;
inline constexpr std::uint8_t kHopsMost = 64;
/// Rounding it up to a slot's unit, and adding a few, does not overflow.
inline constexpr std::uint64_t kMemoryMostBytes = std::uint64_t{1} << 56;

}  // namespace oriel::topo
