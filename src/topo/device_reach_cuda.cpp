// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <cstring>

#include <fmt/format.h>

#include "base/cuda_table.hpp"
#include "base/try.hpp"
#include "topo/device_reach.hpp"

namespace oriel::topo {
namespace {

struct VisibleDevice {
  CUdevice handle = 0;
  DeviceUuid uuid{};
};

Result<VisibleDevice> open_device(int ordinal) {
  VisibleDevice device;
  CUuuid uuid{};
  ORIEL_CHECK(cuda_status(fmt::format("opening device {}", ordinal),
                          cuda().device_get(&device.handle, ordinal)));
  ORIEL_CHECK(cuda_status(fmt::format("asking for the UUID of device {}", ordinal),
                          cuda().device_get_uuid(&uuid, device.handle)));
  static_assert(sizeof uuid.bytes == sizeof(DeviceUuid));
  std::memcpy(device.uuid.data(), uuid.bytes, device.uuid.size());
  return device;
}

}  // namespace

Result<RankInfo> cuda_rank_info(const NodeIdentity& node, int ordinal) {
  RankInfo info = host_rank_info(node);
  info.kind = DeviceKind::cuda;
  info.device = ordinal;
  ORIEL_TRY(const VisibleDevice own, open_device(ordinal));
  info.uuid = own.uuid;
  std::array<char, kPciIdMostBytes + 1> pci{};
  ORIEL_CHECK(cuda_status(
      fmt::format("asking for the PCI id of device {}", ordinal),
      cuda().device_get_pci_bus_id(pci.data(), static_cast<int>(pci.size()), own.handle)));
  info.pci_id = pci.data();

  int count = 0;
  ORIEL_CHECK(cuda_status("counting devices", cuda().device_get_count(&count)));
  for (int other = 0; other < count; ++other) {
    ORIEL_TRY(const VisibleDevice device, open_device(other));
    int reachable = 1;
    if (other != ordinal) {
      ORIEL_CHECK(
          cuda_status(fmt::format("asking whether device {} reaches device {}", ordinal, other),
                      cuda().device_can_access_peer(&reachable, own.handle, device.handle)));
    }
    info.seen.push_back({device.uuid, reachable != 0});
  }
  return info;
}

}  // namespace oriel::topo
