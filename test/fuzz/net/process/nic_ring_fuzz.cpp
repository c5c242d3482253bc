// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstring>
#include <memory>

#include "fuzz/input.hpp"
#include "net/process/nic_process_ring.hpp"

using namespace oriel;
using namespace oriel::net;

namespace {

constexpr std::uint32_t kSlots = 2;
constexpr std::uint32_t kSlotBytes = 4096;
constexpr std::uint64_t kStaging = kSlots * kSlotBytes;
const NicRegion kLocal{0x100000, 5000, true};
const NicRegion kRemote{0x200000, 70'000, false};

const NicRegion* find(std::uint32_t number) {
  return number == 1 ? &kLocal : number == 2 ? &kRemote : nullptr;
}

bool inside_a_region(std::uint64_t at, std::uint64_t bytes) {
  return std::any_of(&kLocal, &kLocal + 1,
                     [&](const NicRegion& one) {
                       return at >= one.address && at + bytes <= one.address + one.bytes;
                     }) ||
         (at >= kRemote.address && at + bytes <= kRemote.address + kRemote.bytes);
}

void check(const NicStep& step) {
  const bool is_rows = step.kind == NicCommand::rows;
  if (step.kind == NicCommand::signal) return;
  expect(inside_a_region(step.at, (is_rows ? 2 : 1) * step.bytes));
  if (step.kind == NicCommand::copy) {
    expect(inside_a_region(step.from, step.bytes));
  } else if (step.kind != NicCommand::write) {
    expect(step.staging + (is_rows ? step.stride : 0) + step.bytes <= kStaging);
  }
}

/// A page of words and a ring, shared between the rank's process and the copying process.
struct Page {
  alignas(4096) std::byte bytes[kNicHeaderBytes + kNicRingBytes + kStaging];
};

}  // namespace

// The input is a list of turns: a head byte and commands. The upper seven bits of the head are the
// number of commands. If the lowest bit is set, an arbitrary producer position follows. Whatever
// the ring holds, at most the announced commands run, and each stays inside the regions and slots.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const auto page = std::make_unique<Page>();
  std::memset(page->bytes, 0, kNicHeaderBytes);
  const NicChannelMemory memory(page->bytes);
  NicRingReader ring;
  std::uint64_t written = 0;
  std::uint64_t done = 0;
  for (std::size_t at = 0; at < size;) {
    const std::uint8_t head = data[at++];
    for (int i = 0; i < head / 2 && size - at >= sizeof(NicCommand); ++i) {
      std::memcpy(&memory.command(written++), data + at, sizeof(NicCommand));
      at += sizeof(NicCommand);
    }
    std::uint64_t said = written;
    if (head % 2 != 0 && size - at >= sizeof said) {
      std::memcpy(&said, data + at, sizeof said);
      at += sizeof said;
    }
    memory.produced().store(said);
    while (ring.has_commands(memory)) {
      int steps = 0;
      const Status outcome = ring.take(memory, kStaging, find, [&](const NicStep& step) -> Status {
        check(step);
        ++steps;
        ++done;
        if (step.value == 0xbad) return Error(ErrorCode::system, "the driver has failed");
        return {};
      });
      expect(steps <= NicRingReader::kCommandsOfTurn);
      if (!outcome.ok()) return 0;
      ring.release(memory);
      expect(done <= said && memory.consumed().load() == done);
    }
  }
  return 0;
}
