// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <cstring>

#include "fuzz/input.hpp"
#include "net/soft/nic_soft.hpp"
#include "net/support/local_wires.hpp"

using namespace oriel;
using namespace oriel::net;

namespace {

constexpr std::uint32_t kDepth = 128;
constexpr std::size_t kWords = 64;

/// A queue in its own memory, and the memory that it may access.
struct Side {
  alignas(64) std::array<std::byte, kDepth * 64> ring{};
  alignas(64) std::array<std::byte, 64> completion{};
  alignas(64) std::array<std::byte, 4 * 64> received{};
  std::array<std::uint32_t, 2> record{};
  std::uint64_t doorbell = 0;
  std::uint64_t error = 0;
  std::array<std::uint64_t, kWords> memory{};
  NicSoft nic;
  std::uint32_t queue = 0;
  std::uint32_t key = 0;

  explicit Side(test::LocalWires& exchange) {
    nic.add_wire(exchange.attach());
    const auto made =
        nic.register_memory({0x10000, sizeof memory, reinterpret_cast<std::byte*>(memory.data()),
                             kLocalWrite | kRemoteWrite | kRemoteRead | kRemoteAtomic});
    expect(made.ok());
    key = made.value();
    QueueSetup setup;
    setup.memory = {ring.data(),     kDepth, record.data(), &doorbell, completion.data(),
                    received.data(), 4,      &error};
    setup.piece_bytes = 64;
    const auto number = nic.create_queue(setup);
    expect(number.ok());
    queue = number.value();
  }
};

std::uint32_t big(std::uint32_t value) {
  return __builtin_bswap32(value);
}

}  // namespace

// The input is the ring and its doorbell value. If the first byte of a WQEBB is even, its index and
// queue number are corrected. Keys 1 and 2 become those of this side and the peer. Such inputs pass
// the first check.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 4) return 0;
  test::LocalWires exchange;
  Side a(exchange), b(exchange);
  expect(a.nic.connect(a.queue, {0, b.nic.address(0), b.queue}).ok());
  expect(b.nic.connect(b.queue, {0, a.nic.address(0), a.queue}).ok());
  b.record[0] = big(data[0]);
  const std::uint32_t rung = data[1] | static_cast<std::uint32_t>(data[2]) << 8;
  const bool behind = (data[3] & 1) != 0;
  std::memcpy(a.ring.data(), data + 4, std::min(size - 4, a.ring.size()));
  for (std::uint32_t i = 0; i < kDepth; ++i) {
    auto* words = reinterpret_cast<std::uint32_t*>(a.ring.data() + i * 64);
    if ((words[0] & 1) != 0) continue;
    words[0] = (words[0] & big(0xff0000ff)) | big(i << 8);
    words[1] = (words[1] & big(0xff)) | big(a.queue << 8);
    for (int at = 5; at < 16; ++at) {
      if (words[at] == big(1)) words[at] = big(a.key);
      if (words[at] == big(2)) words[at] = big(b.key);
    }
  }
  a.record[1] = big((behind ? rung - 1 : rung) & 0xffff);
  const std::uint64_t doorbell = std::uint64_t{big(a.queue << 8)} << 32 | big((rung & 0xffff) << 8);
  a.doorbell = doorbell;
  bool busy = true;
  for (int i = 0; i < 2000 && busy; ++i) {
    busy = a.nic.progress();
    busy = b.nic.progress() || busy;
  }
  // If the doorbell exceeds the ring, or a WQE is invalid, the queue enters the error state and
  // sets `error`.
  const bool failed = a.nic.state(a.queue).value() == QueueState::error;
  expect(failed == (a.error != 0));
  if (rung > kDepth || (behind && rung != 0)) expect(failed);
  return 0;
}
