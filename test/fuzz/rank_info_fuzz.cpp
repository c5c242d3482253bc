// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "input.hpp"
#include "topo/rank_info.hpp"

using namespace oriel;
using namespace oriel::topo;

// What is taken of a rank's place is encoded to the same bytes again, and keeps to its limits.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const ByteView input = view(data, size);
  const auto info = decode_rank_info(input);
  if (!info.ok()) return 0;
  const Bytes again = encode(info.value());
  expect(std::equal(again.begin(), again.end(), input.begin(), input.end()));
  expect(info->seen.size() <= kSeenDevicesMost && info->pci_id.size() <= kPciIdMostBytes);
  expect(info->memory_bytes <= kMemoryMostBytes);
  for (const SeenDevice& device : info->seen) expect(find_seen(*info, device.uuid) == &device);
  expect(shares_pids(*info, *info) == (info->pid_namespace != 0));
  return 0;
}
