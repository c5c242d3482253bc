// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <atomic>
#include <cstring>
#include <thread>
#include <vector>

#include <catch2/catch.hpp>

#include "device/bodies.hpp"
#include "device/device_ranks.hpp"

namespace oriel::test {
namespace {

using device::Packet16;
using device::Packet8;

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr std::uint32_t kEpochs = 200;  // a sanitizer makes each many times slower
#else
constexpr std::uint32_t kEpochs = 1500;
#endif
constexpr std::uint32_t kPackets = 16;

template <class Packet>
bool exchange(RankKind kind, int ranks, std::uint32_t first_flag) {
  LsaMemory memory(ranks, ControlLayout::kBytes);
  return run_ranks(kind, memory, ranks, [&](const device::CommView& comm) {
    return exchange_packets<Packet>(device::Thread{}, comm, first_flag, kEpochs, kPackets);
  });
}

// Overwrites a packet in one thread while another checks all that it reads of the packet. Returns
// the number of torn packets.
template <class Packet>
std::uint64_t count_torn() {
  Packet packet{};
  std::atomic<bool> stop{false};
  std::thread writer([&] {
    for (std::uint32_t flag = 1; !stop.load(std::memory_order_relaxed);
         flag = device::next_flag(flag)) {
      Packet::send(&packet, static_cast<typename Packet::Data>(packet_data(flag, 0, 0)), flag);
    }
  });
  std::uint64_t torn = 0;
  std::uint64_t seen = 0;
  for (int i = 0; i < 300'000 || (seen < 1000 && i < 100'000'000); ++i) {
    const Packet copy{device::Memory::load<device::Order::relaxed>(&packet.bits)};
    std::uint32_t flag;
    std::memcpy(&flag, reinterpret_cast<const char*>(&copy) + 4, sizeof flag);
    typename Packet::Data data;
    if (flag == 0 || !Packet::try_receive(&copy, flag, data)) continue;
    ++seen;
    if (data != static_cast<typename Packet::Data>(packet_data(flag, 0, 0))) ++torn;
  }
  stop = true;
  writer.join();
  CHECK(seen >= 1000);
  return torn;
}

TEST_CASE("a packet is received only with its own flag", "[req:1.22]") {
  Packet8 small{};
  std::uint32_t data32 = 0;
  CHECK_FALSE(Packet8::try_receive(&small, 1, data32));
  Packet8::send(&small, 0xdeadbeefu, 1);
  CHECK_FALSE(Packet8::try_receive(&small, 2, data32));
  REQUIRE(Packet8::try_receive(&small, 1, data32));
  CHECK(data32 == 0xdeadbeefu);
  Packet8::clear(&small);
  CHECK_FALSE(Packet8::try_receive(&small, 1, data32));

  Packet16 wide{};
  std::uint64_t data64 = 0;
  CHECK_FALSE(Packet16::try_receive(&wide, 1, data64));
  Packet16::send(&wide, 0x0123456789abcdefu, 7);
  REQUIRE(Packet16::try_receive(&wide, 7, data64));
  CHECK(data64 == 0x0123456789abcdefu);
  for (int half = 0; half < 2; ++half) {  // while one half is old, nothing is received
    Packet16 mixed = wide;
    mixed.bits.half[half] = (std::uint64_t{6} << 32) | 5;
    CHECK_FALSE(Packet16::try_receive(&mixed, 7, data64));
  }
  Packet16::clear(&wide);
  CHECK_FALSE(Packet16::try_receive(&wide, 7, data64));
}

TEST_CASE("several packets are received in one wait", "[req:1.22]") {
  std::vector<Packet8> inbox(12);
  device::WaitControl control;
  control.timeout_ns = 20'000'000;
  std::uint32_t data[4] = {};
  for (std::uint32_t i = 0; i < 3; ++i) Packet8::send(&inbox[i * 3], 100 + i, 5);
  CHECK(device::receive_all<4>(inbox.data(), 3, 5, data, control, 1) ==
        device::WaitOutcome::timed_out);
  Packet8::send(&inbox[9], 103, 5);
  REQUIRE(device::receive_all<4>(inbox.data(), 3, 5, data, control, 1) ==
          device::WaitOutcome::ready);
  for (std::uint32_t i = 0; i < 4; ++i) CHECK(data[i] == 100 + i);
}

TEST_CASE("flags skip zero and keep the rotation where they wrap", "[req:1.22]") {
  CHECK(device::next_flag(0) == 1);
  CHECK(device::next_flag(0xfffffffeu) == 0xffffffffu);
  CHECK(device::next_flag(0xffffffffu) == 1);
  std::uint32_t flag = 0xfffffff0u;
  for (int i = 0; i < 100; ++i) {
    const std::uint32_t next = device::next_flag(flag);
    CHECK(next % device::kRotation == (flag % device::kRotation + 1) % device::kRotation);
    flag = next;
  }
}

TEST_CASE("every packet of every rotating buffer is cleared in time", "[req:1.22]") {
  constexpr std::uint32_t kCount = 37;
  std::vector<int> cleared(kCount * device::kRotation);
  std::uint32_t flag = 0xffffffffu - kCount;  // shortly before the wrap
  for (std::uint32_t i = 0; i < 2 * kCount * device::kRotation; ++i) {
    ++cleared[flag % device::kRotation * kCount + device::stale_packet(flag, kCount)];
    flag = device::next_flag(flag);
  }
  for (const int count : cleared) CHECK(count >= 1);
}

TEST_CASE("packets are never torn", "[req:1.22]") {
  CHECK(count_torn<Packet8>() == 0);
  CHECK(count_torn<Packet16>() == 0);
}

TEST_CASE("packets carry an exchange among ranks, also where flags wrap", "[req:1.22]") {
  const auto kind = GENERATE(RankKind::threads, RankKind::processes);
  const int ranks = GENERATE(2, 3, 8);
  const std::uint32_t flag = GENERATE(1u, 0xffffffffu - kEpochs / 2);
  CAPTURE(static_cast<int>(kind), ranks, flag);
  CHECK(exchange<Packet8>(kind, ranks, flag));
  if (ranks == 2) CHECK(exchange<Packet16>(kind, ranks, flag));
}

}  // namespace
}  // namespace oriel::test
