// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstring>

#include "fuzz/input.hpp"
#include "net/process/nic_process_message.hpp"

using namespace oriel;
using namespace oriel::net;

namespace {

/// Whatever the command, its effect stays inside the regions and the slots.
void check(const NicCommand& command) {
  static const NicRegion local{0x100000, 5000, true}, remote{0x200000, 70'000, false};
  constexpr std::uint64_t kStaging = 8192;
  const auto find = [](std::uint32_t number) -> const NicRegion* {
    return number == 1 ? &local : number == 2 ? &remote : nullptr;
  };
  const auto step = check_command(command, kStaging, find);
  if (!step.ok() || step->kind == NicCommand::signal) return;
  const auto inside = [](const NicRegion& region, std::uint64_t at, std::uint64_t bytes) {
    return at >= region.address && at + bytes <= region.address + region.bytes;
  };
  const std::uint64_t rows = step->kind == NicCommand::rows ? 2 : 1;
  const NicRegion* const region = find(command.region);
  expect(region != nullptr && inside(*region, step->at, rows * step->bytes));
  if (step->kind == NicCommand::copy) {
    expect(inside(*find(command.from), step->from, step->bytes));
  } else if (step->kind != NicCommand::write) {
    const std::uint64_t stride = step->kind == NicCommand::rows ? step->stride : 0;
    expect(step->staging + stride + step->bytes <= kStaging);
  } else {
    expect(step->at % step->bytes == 0);
  }
}

}  // namespace

// The input is a message to a NIC's process, an answer from it, or commands in its ring.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto request = decode_nic_request(view(data, size));
  if (request.ok()) {
    const Bytes again = encode(request.value());
    expect(again.size() == size && std::memcmp(again.data(), data, size) == 0);
  }
  const auto answer = decode_nic_answer(view(data, size));
  if (answer.ok()) expect(encode(answer.value()).size() == size);
  for (std::size_t at = 0; at + sizeof(NicCommand) <= size; at += sizeof(NicCommand)) {
    NicCommand command;
    std::memcpy(&command, data + at, sizeof command);
    check(command);
  }
  return 0;
}
