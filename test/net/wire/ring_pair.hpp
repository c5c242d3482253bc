// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <utility>

#include <catch2/catch.hpp>

#include "net/wire/wire_ring.hpp"

namespace oriel::net::test {

/// Two mappings of the same fresh shared memory, as two processes have them.
struct Twice {
  SharedMapping a, b;
};
inline Twice map_twice(std::size_t bytes) {
  auto fd = make_sealed_memfd(bytes);
  REQUIRE(fd.ok());
  auto a = SharedMapping::map(fd.value(), bytes);
  auto b = SharedMapping::map(fd.value(), bytes);
  REQUIRE((a.ok() && b.ok()));
  return {std::move(a).value(), std::move(b).value()};
}

/// Overwrites a word in the memory of a ring.
inline void set_counter(const SharedMapping& memory, std::size_t at, std::uint64_t value) {
  std::memcpy(memory.data() + at, &value, sizeof value);
}
inline constexpr std::size_t kWrittenWord = 0;
inline constexpr std::size_t kTakenWord = 128;
inline constexpr std::size_t kRingBegins = 4096;

/// Wires of two NICs with addresses 1 and 2, of ranks 0 and 1. Each wire has mappings of its own.
/// `spy` is a third mapping of the ring from b to a. `doorbell` is a mapping of b's wake-up memory.
struct RingPair {
  explicit RingPair(std::size_t ring_bytes = 65536, std::uint32_t queue_of_a = 0) {
    const std::size_t bytes = ring_memory_bytes(ring_bytes);
    auto to_b = map_twice(bytes);
    auto fd = make_sealed_memfd(bytes);
    REQUIRE(fd.ok());
    auto back_b = SharedMapping::map(fd.value(), bytes);
    auto back_a = SharedMapping::map(fd.value(), bytes);
    auto third = SharedMapping::map(fd.value(), bytes);
    REQUIRE((back_a.ok() && back_b.ok() && third.ok()));
    spy = std::move(third).value();
    auto doorbell_a = map_twice(RingDoorbell::kMemoryBytes);
    auto doorbell_b = map_twice(RingDoorbell::kMemoryBytes);
    doorbell = std::move(doorbell_b.b);
    a->add_peer({2}, 1, queue_of_a, RingWriter(std::move(to_b.a), ring_bytes),
                RingReader(std::move(back_a).value(), ring_bytes),
                RingDoorbell(std::move(doorbell_b.a)));
    b->add_peer({1}, 0, 0, RingWriter(std::move(back_b).value(), ring_bytes),
                RingReader(std::move(to_b.b), ring_bytes), RingDoorbell(std::move(doorbell_a.a)));
  }
  std::unique_ptr<RingWire> a = std::make_unique<RingWire>(WireAddress{1});
  std::unique_ptr<RingWire> b = std::make_unique<RingWire>(WireAddress{2});
  SharedMapping spy;
  SharedMapping doorbell;
};

}  // namespace oriel::net::test
