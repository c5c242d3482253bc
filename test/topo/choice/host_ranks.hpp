// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "topo/choice/rank_info.hpp"

namespace oriel::topo {

inline RankInfo on_host(std::uint64_t host, std::uint64_t process, int numa = -1) {
  RankInfo info;
  info.node = NodeIdentity{host, 77};
  info.process = process;
  info.numa = numa;
  return info;
}

inline DeviceUuid uuid(int device) {
  DeviceUuid name{};
  name[0] = static_cast<std::byte>((device + 1) & 255);
  name[1] = static_cast<std::byte>((device + 1) >> 8);
  return name;
}

/// Returns a rank on a GPU, in a process that sees no other GPU.
inline RankInfo on_gpu(std::uint64_t host, int device) {
  RankInfo info = on_host(host, static_cast<std::uint64_t>(device) + 1);
  info.kind = DeviceKind::cuda;
  info.device = device;
  info.uuid = uuid(device);
  info.seen = {SeenDevice{info.uuid, true, true, {PathKind::same_device, 0, 0, true}}};
  return info;
}

}  // namespace oriel::topo
