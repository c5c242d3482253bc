// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "fuzz/input.hpp"
#include "topo/choice/rank_info.hpp"

using namespace oriel;
using namespace oriel::topo;

namespace {

/// An accepted supplement is encoded to the same bytes again.
void add_to(RankInfo info, ByteView input, Wanted wanted) {
  if (!add_supplement(info, input, wanted).ok()) return;
  const Bytes again = encode_supplement(info, wanted);
  expect(std::equal(again.begin(), again.end(), input.begin(), input.end()));
  expect(decode_rank_info(encode(info)).ok());
}

/// Returns a rank on a GPU, like the one of the corpus.
RankInfo rank_on_gpu() {
  RankInfo info;
  info.process = 1;
  info.kind = DeviceKind::cuda;
  info.device = 0;
  info.may_learn_more = true;
  return info;
}

}  // namespace

// Accepted rank information is encoded to the same bytes again and respects its limits.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const ByteView input = view(data, size);
  for (const bool network : {false, true}) {
    add_to(rank_on_gpu(), input, {.hidden_gpus = true, .network = network});
    add_to(rank_on_gpu(), input, {.hidden_gpus = false, .network = network});
  }
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
