// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "topo/device_reach.hpp"

#include <cstdio>

#include <catch2/catch.hpp>

#include "base/cuda_table.hpp"
#include "topo/lsa_teams.hpp"

namespace oriel::topo {
namespace {

/// A machine of four GPUs in two pairs that reach each other, where device 3 also reaches device 0
/// but not the other way round. Handles are the ordinals plus 100.
CUresult get_count(int* count) {
  *count = 4;
  return CUDA_SUCCESS;
}
CUresult get(CUdevice* device, int ordinal) {
  if (ordinal < 0 || ordinal >= 4) return CUDA_ERROR_INVALID_DEVICE;
  *device = ordinal + 100;
  return CUDA_SUCCESS;
}
CUresult get_uuid(CUuuid* uuid, CUdevice device) {
  for (char& byte : uuid->bytes) byte = static_cast<char>(device);
  return CUDA_SUCCESS;
}
CUresult get_pci_bus_id(char* text, int bytes, CUdevice device) {
  std::snprintf(text, static_cast<std::size_t>(bytes), "0000:%02x:00.0",
                static_cast<unsigned>(device));
  return CUDA_SUCCESS;
}
CUresult can_access_peer(int* reachable, CUdevice device, CUdevice peer) {
  if (device == peer) return CUDA_ERROR_INVALID_DEVICE;
  const int from = device - 100, to = peer - 100;
  *reachable = from / 2 == to / 2 || (from == 3 && to == 0);
  return CUDA_SUCCESS;
}

CudaTable machine() {
  CudaTable table = cuda();
  table.device_get_count = get_count;
  table.device_get = get;
  table.device_get_uuid = get_uuid;
  table.device_get_pci_bus_id = get_pci_bus_id;
  table.device_can_access_peer = can_access_peer;
  return table;
}

}  // namespace

TEST_CASE("1.14 GPUs tell which others they reach, and teams follow") {
  const CudaTable table = machine();
  const ScopedCudaTable scoped(table);
  std::vector<RankInfo> ranks;
  for (int ordinal = 0; ordinal < 4; ++ordinal) {
    const auto info = cuda_rank_info(NodeIdentity{1, 2}, ordinal);
    REQUIRE(info.ok());
    CHECK(info->device == ordinal);
    CHECK(info->seen.size() == 4);
    CHECK(info->seen[static_cast<std::size_t>(ordinal)] == SeenDevice{info->uuid, true});
    CHECK(decode_rank_info(encode(info.value())).value() == info.value());
    ranks.push_back(info.value());
  }
  CHECK(ranks[2].pci_id == "0000:66:00.0");
  CHECK(can_map(ranks[3], ranks[0]));
  CHECK_FALSE(can_map(ranks[0], ranks[3]));
  CHECK(form_lsa_teams(ranks).members == std::vector<std::vector<int>>{{0, 1}, {2, 3}});
}

TEST_CASE("1.38 a driver call that fails is an error that says what was asked") {
  CudaTable table = machine();
  table.device_can_access_peer = [](int*, CUdevice, CUdevice) { return CUDA_ERROR_UNKNOWN; };
  const ScopedCudaTable scoped(table);
  const auto info = cuda_rank_info(NodeIdentity{1, 2}, 1);
  REQUIRE_FALSE(info.ok());
  CHECK(info.error().to_string().find("whether device 1 reaches device 0") != std::string::npos);
  CHECK_FALSE(cuda_rank_info(NodeIdentity{1, 2}, 4).ok());
}

}  // namespace oriel::topo
