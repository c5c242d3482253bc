// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "topo/choice/rank_info.hpp"

#include <algorithm>

#include <sys/stat.h>
#include <unistd.h>

#include "base/process_number.hpp"
#include "base/try.hpp"

namespace oriel::topo {
namespace {

/// Raise it if this format changes, or what ranks write into each other's memory.
constexpr std::uint16_t kVersion = 11;

Error bad(const std::string& what) {
  return Error(ErrorCode::remote, "rank information: " + what);
}

DeviceUuid get_uuid(ByteReader& reader) {
  DeviceUuid uuid{};
  const ByteView raw = reader.get_raw(uuid.size());
  std::copy(raw.begin(), raw.end(), uuid.begin());
  return uuid;
}

/// Reads a boolean byte; any value but 0 and 1 is copied to `odd`.
bool get_truth(ByteReader& reader, std::uint8_t& odd) {
  const auto value = reader.get<std::uint8_t>();
  if (value > 1) odd = value;
  return value == 1;
}

void put_seen(ByteWriter& writer, const SeenDevice& device) {
  writer.put_raw(device.uuid).put(static_cast<std::uint8_t>(device.reachable));
  writer.put(static_cast<std::uint8_t>(device.visible)).put(device.path.kind);
  writer.put(device.path.hops).put(device.path.bandwidth_class);
  writer.put(static_cast<std::uint8_t>(device.path.atomics));
}

void put_all_seen(ByteWriter& writer, const std::vector<SeenDevice>& seen) {
  const std::size_t count = std::min(seen.size(), kSeenDevicesMost);
  writer.put(static_cast<std::uint32_t>(count));
  for (std::size_t i = 0; i < count; ++i) put_seen(writer, seen[i]);
}

SeenDevice get_seen(ByteReader& reader, std::uint8_t& odd) {
  SeenDevice device;
  device.uuid = get_uuid(reader);
  device.reachable = get_truth(reader, odd);
  device.visible = get_truth(reader, odd);
  device.path.kind = static_cast<PathKind>(reader.get<std::uint8_t>());
  device.path.hops = reader.get<std::uint8_t>();
  device.path.bandwidth_class = reader.get<std::uint8_t>();
  device.path.atomics = get_truth(reader, odd);
  return device;
}

Result<std::vector<SeenDevice>> get_all_seen(ByteReader& reader, std::uint8_t& odd) {
  const auto count = reader.get<std::uint32_t>();
  if (count > kSeenDevicesMost) {
    return bad(std::to_string(count) + " devices, at most " + std::to_string(kSeenDevicesMost));
  }
  std::vector<SeenDevice> seen;
  for (std::uint32_t i = 0; i < count && reader.good(); ++i) seen.push_back(get_seen(reader, odd));
  return seen;
}

Status check_seen(const RankInfo& info, const SeenDevice& device) {
  const PathFacts& path = device.path;
  if (path.kind > PathKind::host_memory) {
    return bad("a path to a device of the same machine is of kind " +
               std::to_string(static_cast<int>(path.kind)));
  }
  if (path.hops > kHopsMost || path.bandwidth_class > kBandwidthClassMost) {
    return bad("a path of " + std::to_string(path.hops) + " hops and bandwidth class " +
               std::to_string(path.bandwidth_class) + "; the limits are " +
               std::to_string(kHopsMost) + " and " + std::to_string(kBandwidthClassMost));
  }
  if (device.reachable != (path.kind != PathKind::host_memory)) {
    return bad("a path of kind " + std::to_string(static_cast<int>(path.kind)) +
               " contradicts whether the device can be mapped (" +
               std::to_string(static_cast<int>(device.reachable)) + ")");
  }
  if ((device.uuid == info.uuid) != (path.kind == PathKind::same_device)) {
    return bad("a path of kind " + std::to_string(static_cast<int>(path.kind)) +
               " is that of another device");
  }
  return {};
}

/// Checks the fields that only ranks on GPUs have.
Status check_device(const RankInfo& info) {
  const bool on_host = info.kind == DeviceKind::host;
  if (on_host && (info.device != -1 || !info.pci_id.empty() || !info.seen.empty() ||
                  info.uuid != DeviceUuid{} || info.fabric || info.fabric_handles ||
                  info.links_class != 0 || info.may_learn_more || info.keeps_apart ||
                  info.wants_copy_engines || info.resident_ctas != 0 || info.cta_limit != 0 ||
                  info.cta_least != 0 || info.known_sharers != 0)) {
    return bad("a rank on the host names a device: ordinal " + std::to_string(info.device) +
               ", PCI id of " + std::to_string(info.pci_id.size()) + " bytes, " +
               std::to_string(info.seen.size()) + " devices seen");
  }
  if (!on_host && info.device < 0) {
    return bad("device ordinal " + std::to_string(info.device) + " is negative");
  }
  if (info.links_class > kBandwidthClassMost) {
    return bad("links of bandwidth class " + std::to_string(info.links_class) + "; the limit is " +
               std::to_string(kBandwidthClassMost));
  }
  const auto most_ctas =
      std::max({info.resident_ctas, info.cta_limit, info.cta_least, info.known_sharers});
  if (most_ctas > kCtasMost) {
    return bad("a device with CTAs for " + std::to_string(most_ctas) + "; the limit is " +
               std::to_string(kCtasMost));
  }
  const auto disordered = [](const SeenDevice& a, const SeenDevice& b) { return a.uuid >= b.uuid; };
  const auto at = std::adjacent_find(info.seen.begin(), info.seen.end(), disordered);
  if (at != info.seen.end()) {
    return bad("device " + std::to_string(at - info.seen.begin()) + " and the next of " +
               std::to_string(info.seen.size()) + ", are not in the order of their UUIDs");
  }
  for (const SeenDevice& device : info.seen) ORIEL_CHECK(check_seen(info, device));
  return {};
}

Status check_fields(const RankInfo& info) {
  if (info.process == 0) return bad("the process number is 0");
  if (info.memory_bytes > kMemoryMostBytes) {
    return bad("a memory of " + std::to_string(info.memory_bytes) + " bytes; the limit is " +
               std::to_string(kMemoryMostBytes));
  }
  if (info.numa < -1 || info.numa > kNumaNumberMost) {
    return bad("NUMA node " + std::to_string(info.numa) + ", not of -1 to " +
               std::to_string(kNumaNumberMost));
  }
  if (info.host_class > kBandwidthClassMost || info.network_class > kBandwidthClassMost) {
    return bad("host memory or a network of bandwidth class " +
               std::to_string(std::max(info.host_class, info.network_class)) + "; the limit is " +
               std::to_string(kBandwidthClassMost));
  }
  const auto printable = [](char letter) { return letter > ' ' && letter <= '~'; };
  if (info.pci_id.size() > kPciIdMostBytes ||
      !std::all_of(info.pci_id.begin(), info.pci_id.end(), printable)) {
    return bad("the PCI id of " + std::to_string(info.pci_id.size()) +
               " bytes is no PCI id of up to " + std::to_string(kPciIdMostBytes) +
               " printable letters");
  }
  return check_device(info);
}

}  // namespace

RankInfo host_rank_info(const NodeIdentity& node) {
  RankInfo info;
  info.node = node;
  const HostFacts facts = read_host_facts();
  if (!facts.boot_id.empty()) info.machine = host_hash(facts, "");
  info.process = process_number();
  info.pid = ::getpid();
  struct stat space {};
  if (::stat("/proc/self/ns/pid", &space) == 0) info.pid_namespace = space.st_ino;
  info.uid = ::geteuid();
  return info;
}

bool shares_pids(const RankInfo& own, const RankInfo& other) {
  const bool known = own.machine != 0 && other.machine != 0;
  const bool one_machine = known ? own.machine == other.machine : own.node == other.node;
  return one_machine && own.pid_namespace != 0 && own.pid_namespace == other.pid_namespace;
}

const SeenDevice* find_seen(const RankInfo& own, const DeviceUuid& uuid) {
  const auto found =
      std::lower_bound(own.seen.begin(), own.seen.end(), uuid,
                       [](const SeenDevice& one, const DeviceUuid& key) { return one.uuid < key; });
  return found != own.seen.end() && found->uuid == uuid ? &*found : nullptr;
}

Bytes encode(const RankInfo& info) {
  ByteWriter writer;
  writer.put(kVersion).put(info.kind).put(info.node.host).put(info.node.network_namespace);
  writer.put(static_cast<std::uint8_t>(info.node.named));
  writer.put(info.machine).put(info.process).put(info.pid).put(info.pid_namespace).put(info.uid);
  writer.put(info.memory_bytes).put(info.numa).put(info.host_class).put(info.network_class);
  writer.put(info.device);
  writer.put_string(info.pci_id).put_raw(info.uuid);
  writer.put(static_cast<std::uint8_t>(info.fabric_handles)).put(info.links_class);
  writer.put(info.resident_ctas).put(info.cta_limit).put(info.cta_least);
  writer.put(info.known_sharers);
  writer.put(static_cast<std::uint8_t>(info.fabric.has_value()));
  if (info.fabric) writer.put_raw(info.fabric->cluster).put(info.fabric->clique);
  writer.put(static_cast<std::uint8_t>(info.keeps_apart));
  writer.put(static_cast<std::uint8_t>(info.wants_copy_engines));
  writer.put(static_cast<std::uint8_t>(info.may_learn_more));
  put_all_seen(writer, info.seen);
  return writer.take();
}

Result<RankInfo> decode_rank_info(ByteView message) {
  ByteReader reader(message);
  const auto version = reader.get<std::uint16_t>();
  if (reader.good() && version != kVersion) {
    return bad("format " + std::to_string(version) + ", this library knows " +
               std::to_string(kVersion))
        .with_hint("load the same version of Oriel on all ranks");
  }
  RankInfo info;
  std::uint8_t odd = 0;
  const auto kind = reader.get<std::uint8_t>();
  info.node.host = reader.get<std::uint64_t>();
  info.node.network_namespace = reader.get<std::uint64_t>();
  info.node.named = get_truth(reader, odd);
  info.machine = reader.get<std::uint64_t>();
  info.process = reader.get<std::uint64_t>();
  info.pid = reader.get<std::int32_t>();
  info.pid_namespace = reader.get<std::uint64_t>();
  info.uid = reader.get<std::uint32_t>();
  info.memory_bytes = reader.get<std::uint64_t>();
  info.numa = reader.get<std::int32_t>();
  info.host_class = reader.get<std::uint8_t>();
  info.network_class = reader.get<std::uint8_t>();
  info.device = reader.get<std::int32_t>();
  info.pci_id = reader.get_string();
  info.uuid = get_uuid(reader);
  info.fabric_handles = get_truth(reader, odd);
  info.links_class = reader.get<std::uint8_t>();
  info.resident_ctas = reader.get<std::uint16_t>();
  info.cta_limit = reader.get<std::uint16_t>();
  info.cta_least = reader.get<std::uint16_t>();
  info.known_sharers = reader.get<std::uint16_t>();
  if (get_truth(reader, odd)) {
    FabricClique fabric;
    fabric.cluster = get_uuid(reader);
    fabric.clique = reader.get<std::uint32_t>();
    info.fabric = fabric;
  }
  info.keeps_apart = get_truth(reader, odd);
  info.wants_copy_engines = get_truth(reader, odd);
  info.may_learn_more = get_truth(reader, odd);
  ORIEL_TRY(info.seen, get_all_seen(reader, odd));
  ORIEL_CHECK(reader.finish("rank information"));
  if (odd != 0) return bad("a truth value is " + std::to_string(odd) + ", not 0 or 1");
  if (kind != static_cast<std::uint8_t>(DeviceKind::host) &&
      kind != static_cast<std::uint8_t>(DeviceKind::cuda)) {
    return bad("device kind " + std::to_string(kind) + " does not exist");
  }
  info.kind = static_cast<DeviceKind>(kind);
  ORIEL_CHECK(check_fields(info));
  return info;
}

namespace {

// Encodes the request, so that the message of a rank with nothing to add is not empty.
std::uint8_t number_of(Wanted wanted) {
  return static_cast<std::uint8_t>((wanted.hidden_gpus ? 1 : 0) | (wanted.network ? 2 : 0));
}

}  // namespace

Bytes encode_supplement(const RankInfo& info, Wanted wanted) {
  ByteWriter writer;
  writer.put(number_of(wanted));
  if (wanted.network) writer.put(info.network_class);
  if (wanted.hidden_gpus) put_all_seen(writer, info.seen);
  return writer.take();
}

Status add_supplement(RankInfo& info, ByteView message, Wanted wanted) {
  ByteReader reader(message);
  std::uint8_t odd = 0;
  const auto reported = reader.get<std::uint8_t>();
  if (reader.good() && reported != number_of(wanted)) {
    return bad("it adds parts " + std::to_string(reported) + ", not the parts " +
               std::to_string(number_of(wanted)) + " that were asked for");
  }
  if (wanted.network) info.network_class = reader.get<std::uint8_t>();
  if (wanted.hidden_gpus) {
    ORIEL_TRY(info.seen, get_all_seen(reader, odd));
    info.may_learn_more = false;
  }
  ORIEL_CHECK(reader.finish("further rank information"));
  if (odd != 0) return bad("a truth value is " + std::to_string(odd) + ", not 0 or 1");
  return check_fields(info);
}

}  // namespace oriel::topo
