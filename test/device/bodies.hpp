// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "oriel/device/barrier.hpp"
#include "oriel/device/comm.hpp"
#include "oriel/device/group.hpp"
#include "oriel/device/packet.hpp"

/// Bodies that the device tests run on CPU threads, in forked processes and in kernels.
namespace oriel::test {

/// Offsets in each rank's control memory in these tests.
struct ControlLayout {
  static constexpr std::uint64_t kDoorbell = 0;
  static constexpr std::uint64_t kStall = 64;
  static constexpr std::uint64_t kAbort = 128;
  static constexpr std::uint64_t kBarrier = 4096;
  static constexpr std::uint32_t kBarrierSlots = 4;
  static constexpr std::uint64_t kValues = 8192;    ///< one line per barrier slot
  static constexpr std::uint64_t kPackets = 65536;  ///< inbox of the packet tests
  static constexpr std::size_t kBytes = std::size_t{1} << 20;
};

/// Returns the data of packet `index` of epoch `flag`: every bit depends on every argument.
ORIEL_DEVICE_FN std::uint64_t packet_data(std::uint32_t flag, std::int32_t sender,
                                          std::uint32_t index) {
  std::uint64_t x =
      (static_cast<std::uint64_t>(flag) << 32) ^ (static_cast<std::uint64_t>(sender) << 20) ^ index;
  x *= 0x9e3779b97f4a7c15u;
  x ^= x >> 29;
  x *= 0xbf58476d1ce4e5b9u;
  return x ^ (x >> 32);
}

/// Exchanges `packets` packets per pair of ranks all-to-all, `epochs` times, beginning with `flag`.
/// Uses rotating buffers without any barrier. Returns false after wrong data or a failed wait.
template <class Packet, class Group>
ORIEL_DEVICE_FN bool exchange_packets(Group group, const device::CommView& comm, std::uint32_t flag,
                                      std::uint32_t epochs, std::uint32_t packets) {
  using Data = typename Packet::Data;
  const auto team = static_cast<std::uint32_t>(comm.lsa_size);
  const auto buffer = [&](std::int32_t owner, std::uint32_t epoch, std::int32_t sender) {
    const std::uint32_t turn = epoch % device::kRotation;
    auto* inbox = reinterpret_cast<Packet*>(comm.control(owner, ControlLayout::kPackets));
    return inbox + (turn * team + static_cast<std::uint32_t>(sender)) * packets;
  };
  bool good = true;
  std::uint32_t last_flag = 0;
  for (std::uint32_t epoch = 0; epoch < epochs && good; ++epoch) {
    for (std::int32_t to = 0; to < comm.lsa_size; ++to) {
      for (std::uint32_t i = group.rank(); i < packets; i += group.size()) {
        Packet::send(buffer(to, flag, comm.lsa_rank) + i,
                     static_cast<Data>(packet_data(flag, comm.lsa_rank, i)), flag);
      }
    }
    comm.ring_lsa_peers();
    for (std::int32_t from = 0; from < comm.lsa_size && good; ++from) {
      for (std::uint32_t i = group.rank(); i < packets && good; i += group.size()) {
        Data data{};
        good = device::receive(buffer(comm.lsa_rank, flag, from) + i, flag, data, comm.wait,
                               comm.world_rank_of(from)) == device::WaitOutcome::ready &&
               data == static_cast<Data>(packet_data(flag, from, i));
        // Clears a stale packet in the thread that receives it: only this thread knows that nobody
        // writes the packet now.
        if (last_flag != 0 && i == device::stale_packet(last_flag, packets)) {
          Packet::clear(buffer(comm.lsa_rank, last_flag, from) + i);
        }
      }
    }
    last_flag = flag;
    flag = device::next_flag(flag);
  }
  return good;
}

/// Alternates a plain store, a barrier, plain loads of every rank's value, and a barrier.
template <class Group>
ORIEL_DEVICE_FN bool barrier_rounds(Group group, const device::CommView& comm, std::uint32_t slot,
                                    std::uint32_t rounds) {
  const auto value = [&](std::int32_t rank) {
    return reinterpret_cast<std::uint32_t*>(
        comm.control(rank, ControlLayout::kValues + slot * 64u));
  };
  bool good = true;
  for (std::uint32_t round = 1; round <= rounds && good; ++round) {
    device::LsaBarrier<Group> barrier(group, comm, slot);
    // The last thread writes and every thread reads, so that the barrier must order all of them.
    if (group.rank() == group.size() - 1) *value(comm.lsa_rank) = round;
    if (barrier.sync() != device::WaitOutcome::ready) return false;
    for (std::int32_t rank = 0; rank < comm.lsa_size; ++rank) good = good && *value(rank) == round;
    barrier.arrive();
    if (barrier.wait() != device::WaitOutcome::ready) return false;
    good = !group.any(!good);
  }
  return good;
}

}  // namespace oriel::test
