// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "topo/rank_info.hpp"

#include <algorithm>

#include <sys/stat.h>
#include <unistd.h>

#include "base/process_number.hpp"
#include "base/try.hpp"

namespace oriel::topo {
namespace {

constexpr std::uint16_t kVersion = 2;

Error bad(const std::string& what) {
  return Error(ErrorCode::remote, "rank information: " + what);
}

DeviceUuid get_uuid(ByteReader& reader) {
  DeviceUuid uuid{};
  const ByteView raw = reader.get_raw(uuid.size());
  std::copy(raw.begin(), raw.end(), uuid.begin());
  return uuid;
}

Status check_fields(const RankInfo& info) {
  if (info.process == 0) return bad("the process number is 0");
  if (info.memory_bytes > kMemoryMostBytes) {
    return bad("a memory of " + std::to_string(info.memory_bytes) + " bytes");
  }
  const auto printable = [](char letter) { return letter > ' ' && letter <= '~'; };
  if (info.pci_id.size() > kPciIdMostBytes ||
      !std::all_of(info.pci_id.begin(), info.pci_id.end(), printable)) {
    return bad("the PCI id is no PCI id");
  }
  const bool on_host = info.kind == DeviceKind::host;
  if (on_host && (info.device != -1 || !info.pci_id.empty() || !info.seen.empty() ||
                  info.uuid != DeviceUuid{})) {
    return bad("a rank on the host names a device");
  }
  if (!on_host && info.device < 0) {
    return bad("device ordinal " + std::to_string(info.device) + " is negative");
  }
  return {};
}

}  // namespace

RankInfo host_rank_info(const NodeIdentity& node) {
  RankInfo info;
  info.node = node;
  info.process = process_number();
  info.pid = ::getpid();
  struct stat space {};
  if (::stat("/proc/self/ns/pid", &space) == 0) info.pid_namespace = space.st_ino;
  info.uid = ::geteuid();
  return info;
}

bool shares_pids(const RankInfo& own, const RankInfo& other) {
  return own.node == other.node && own.pid_namespace != 0 &&
         own.pid_namespace == other.pid_namespace;
}

Bytes encode(const RankInfo& info) {
  ByteWriter writer;
  writer.put(kVersion).put(info.kind).put(info.node.host).put(info.node.network_namespace);
  writer.put(info.process).put(info.pid).put(info.pid_namespace).put(info.uid);
  writer.put(info.memory_bytes).put(info.device);
  writer.put_string(info.pci_id).put_raw(info.uuid);
  const std::size_t count = std::min(info.seen.size(), kSeenDevicesMost);
  writer.put(static_cast<std::uint32_t>(count));
  for (std::size_t i = 0; i < count; ++i) {
    writer.put_raw(info.seen[i].uuid).put(static_cast<std::uint8_t>(info.seen[i].reachable));
  }
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
  const auto kind = reader.get<std::uint8_t>();
  info.node.host = reader.get<std::uint64_t>();
  info.node.network_namespace = reader.get<std::uint64_t>();
  info.process = reader.get<std::uint64_t>();
  info.pid = reader.get<std::int32_t>();
  info.pid_namespace = reader.get<std::uint64_t>();
  info.uid = reader.get<std::uint32_t>();
  info.memory_bytes = reader.get<std::uint64_t>();
  info.device = reader.get<std::int32_t>();
  info.pci_id = reader.get_string();
  info.uuid = get_uuid(reader);
  const auto count = reader.get<std::uint32_t>();
  if (count > kSeenDevicesMost) {
    return bad(std::to_string(count) + " devices, at most " + std::to_string(kSeenDevicesMost));
  }
  for (std::uint32_t i = 0; i < count && reader.good(); ++i) {
    SeenDevice device;
    device.uuid = get_uuid(reader);
    const auto reachable = reader.get<std::uint8_t>();
    if (reachable > 1) return bad("a truth value is neither 0 nor 1");
    device.reachable = reachable == 1;
    info.seen.push_back(device);
  }
  ORIEL_CHECK(reader.finish("rank information"));
  if (kind != static_cast<std::uint8_t>(DeviceKind::host) &&
      kind != static_cast<std::uint8_t>(DeviceKind::cuda)) {
    return bad("device kind " + std::to_string(kind) + " does not exist");
  }
  info.kind = static_cast<DeviceKind>(kind);
  ORIEL_CHECK(check_fields(info));
  return info;
}

}  // namespace oriel::topo
