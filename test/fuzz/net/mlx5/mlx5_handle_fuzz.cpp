// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <vector>

#include "fuzz/input.hpp"
#include "net/mlx5/mlx5_handle.hpp"

using namespace oriel;
using namespace oriel::net;

// An accepted list of a peer's queue handles is encoded to the same bytes again, and no field is
// out of bounds.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  constexpr std::size_t kMembers = 3;
  const ByteView bytes = view(data, size);
  std::vector<std::vector<Mlx5QueueHandle>> all;
  for (std::size_t member = 0; member < kMembers; ++member) {
    auto found = parse_handles(bytes, kMembers, member);
    if (!found.ok()) return 0;
    all.push_back(std::move(found).value());
    for (const Mlx5QueueHandle& handle : all.back()) {
      expect(handle.number - 1 < 0xffffff && handle.psn <= 0xffffff);
      expect(handle.mtu >= 1 && handle.mtu <= 5 && handle.log_reads_answered <= 7);
    }
  }
  const Bytes again = encode_handles(all);
  expect(again == Bytes(bytes.begin(), bytes.end()));
  return 0;
}
