// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "window/mapping/flat_space.hpp"

#include <cstring>
#include <random>
#include <thread>

#include <catch2/catch.hpp>

#include "base/process_number.hpp"
#include "support/process_state.hpp"
#include "support/seed.hpp"
#include "window/memory/memory_host.hpp"
#include "window/memory/sizes.hpp"

namespace oriel::window {
namespace {

std::vector<TeamMember> team_of(int size) {
  return std::vector<TeamMember>(static_cast<std::size_t>(size), {process_number(), -1});
}

/// An allocation of host_memory(), freed by the destructor.
struct Buffer {
  explicit Buffer(std::size_t bytes) {
    pointer = static_cast<char*>(host_memory().allocate(bytes).value());
    allocation = host_memory().find_segments(pointer, bytes).value().front().allocation;
  }
  ~Buffer() { CHECK(host_memory().free(pointer).ok()); }
  char* pointer;
  AllocationRef allocation;
};

TEST_CASE("communicators with one team share one reservation", "[req:1.15]") {
  const std::size_t before = test::count_mappings();
  {
    auto first = FlatSpace::acquire(host_memory(), team_of(3), kSlotUnitBytes);
    REQUIRE(first.ok());
    auto second = FlatSpace::acquire(host_memory(), team_of(3), kSlotUnitBytes);
    REQUIRE(second.ok());
    CHECK(first->get() == second->get());
    auto other = FlatSpace::acquire(host_memory(), team_of(2), kSlotUnitBytes);
    REQUIRE(other.ok());
    CHECK(other->get() != first->get());
    auto wider = FlatSpace::acquire(host_memory(), team_of(2), 2 * kSlotUnitBytes);
    REQUIRE(wider.ok());
    CHECK(wider->get() != other->get());
    CHECK((*first)->slot_bytes() == kSlotUnitBytes);
    // The base is aligned to the slot unit, so that a step to the next slot keeps the low half of
    // an address.
    CHECK(reinterpret_cast<std::uintptr_t>((*first)->base()) % kSlotUnitBytes == 0);
  }
  CHECK(test::count_mappings() == before);
}

TEST_CASE("the automatic slot holds all memory and 64 ranks fit beside the sanitizers",
          "[req:1.15]") {
  constexpr std::size_t kGiB = std::size_t{1} << 30;
  CHECK(automatic_slot_bytes(MemoryKind::cuda, 141 * kGiB, 8) == 144 * kGiB);
  CHECK(automatic_slot_bytes(MemoryKind::cuda, 0, 8) == 4 * kGiB);
  CHECK(automatic_slot_bytes(MemoryKind::host, 3 * kGiB, 2) == 4 * kGiB);
#ifdef __SANITIZE_THREAD__
  CHECK(automatic_slot_bytes(MemoryKind::host, 24 * kGiB, 8) == 16 * kGiB);
  CHECK(automatic_slot_bytes(MemoryKind::host, 24 * kGiB, 64) == 4 * kGiB);
#else
  CHECK(automatic_slot_bytes(MemoryKind::host, 24 * kGiB, 8) == 24 * kGiB);
  CHECK(automatic_slot_bytes(MemoryKind::host, 2048 * kGiB, 64) == 32 * kGiB);
#endif
}

TEST_CASE("a mapping whose space and buffer are gone still has its memory, until it ends",
          "[req:1.15]") {
  const test::ProcessState before = test::process_state();
  std::shared_ptr<Mapping> mapping;
  {
    Buffer buffer(kMiB);
    std::memcpy(buffer.pointer, "still here", 11);
    auto space = FlatSpace::acquire(host_memory(), team_of(2), kSlotUnitBytes);
    REQUIRE(space.ok());
    auto mapped = (*space)->map(0, 0, buffer.allocation);
    REQUIRE(mapped.ok());
    mapping = std::move(mapped).value();
  }
  CHECK(std::strcmp(reinterpret_cast<char*>(mapping->base()), "still here") == 0);
  mapping = nullptr;
  CHECK(test::process_state() == before);
}

TEST_CASE("a place outside the slot, or that another allocation has, is refused", "[req:1.38]") {
  Buffer buffer(8192);
  Buffer foreign(4096);
  auto space = FlatSpace::acquire(host_memory(), team_of(2), kSlotUnitBytes);
  REQUIRE(space.ok());
  {
    const auto first = (*space)->map(1, 8192, buffer.allocation);
    REQUIRE(first.ok());
    CHECK((*first)->base() == (*space)->base() + kSlotUnitBytes + 8192);
    CHECK_FALSE((*space)->map(1, 8192, foreign.allocation).ok());
    CHECK_FALSE((*space)->map(1, 12288, foreign.allocation).ok());  // inside the first
    CHECK_FALSE((*space)->map(1, 4096, buffer.allocation).ok());    // reaches into the first
    CHECK((*space)->map(0, 8192, foreign.allocation).ok());         // another slot
  }
  CHECK((*space)->map(1, 8192, foreign.allocation).ok());
  CHECK_FALSE((*space)->map(-1, 0, buffer.allocation).ok());
  CHECK_FALSE((*space)->map(2, 0, buffer.allocation).ok());
  CHECK_FALSE((*space)->map(0, 1, buffer.allocation).ok());
  CHECK_FALSE((*space)->map(0, kSlotUnitBytes, buffer.allocation).ok());
  CHECK_FALSE((*space)->map(0, kSlotUnitBytes + 4096, buffer.allocation).ok());
  CHECK_FALSE(FlatSpace::acquire(host_memory(), {}, kSlotUnitBytes).ok());
  CHECK_FALSE(FlatSpace::acquire(host_memory(), team_of(1), kSlotUnitBytes + 4096).ok());
  CHECK_FALSE(FlatSpace::acquire(host_memory(), team_of(64), std::size_t{1} << 45).ok());
  CHECK_FALSE(FlatSpace::acquire(host_memory(), team_of(1), 0).ok());
}

TEST_CASE("threads that map and let go at random leave nothing behind", "[req:1.21]") {
  const std::uint64_t seed = test::test_seed();
  const test::ProcessState before = test::process_state();
  {
    Buffer a(kMiB);
    Buffer b(3 * kMiB);
    std::vector<std::thread> threads;
    std::vector<int> failures(4, 0);
    for (unsigned t = 0; t < 4; ++t) {
      threads.emplace_back([&, t] {
        std::mt19937 random(static_cast<unsigned>(seed) + t);
        std::vector<std::shared_ptr<Mapping>> held;
        for (int i = 0; i < 2500; ++i) {
          if (held.size() > 5 || (random() % 2 == 0 && !held.empty())) {
            held.erase(held.begin() + static_cast<std::ptrdiff_t>(random() % held.size()));
            continue;
          }
          auto space = FlatSpace::acquire(host_memory(), team_of(4), kSlotUnitBytes);
          const bool which = random() % 2 == 0;
          auto mapped = space.value()->map(static_cast<int>(random() % 4), which ? 0 : 8 * kMiB,
                                           which ? a.allocation : b.allocation);
          if (!mapped.ok()) {
            ++failures[t];
            continue;
          }
          held.push_back(std::move(mapped).value());
          *reinterpret_cast<std::atomic<char>*>(held.back()->base()) = 1;
        }
      });
    }
    for (auto& thread : threads) thread.join();
    CHECK(failures == std::vector<int>(4, 0));
  }
  CHECK(test::process_state() == before);
}

}  // namespace
}  // namespace oriel::window
