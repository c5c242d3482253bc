// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <random>

#include <catch2/catch.hpp>

#include "net/copy/host_memory.hpp"
#include "net/soft/nic_pair.hpp"

// Atomic operations (A12), against a reference that works bit by bit. The bodies of
// queue_operations_test.cpp test the device headers' operations that are built on them.
using namespace oriel;
using namespace oriel::net;
using namespace oriel::net::test;

namespace {

// Adds without carrying beyond a bit that is set in `boundary`.
std::uint64_t ripple(std::uint64_t a, std::uint64_t b, std::uint64_t boundary, int bits) {
  std::uint64_t sum = 0;
  unsigned carry = 0;
  for (int i = 0; i < bits; ++i) {
    const unsigned x = a >> i & 1, y = b >> i & 1;
    sum |= std::uint64_t{x ^ y ^ carry} << i;
    carry = (x & y) | (x & carry) | (y & carry);
    if ((boundary >> i & 1) != 0) carry = 0;
  }
  return sum;
}

std::uint64_t select(std::uint64_t old, const AtomicWork& work, int bits) {
  bool equal = true;
  for (int i = 0; i < bits; ++i) {
    const bool differs = (old >> i & 1) != (work.compare >> i & 1);
    if ((work.compare_mask >> i & 1) != 0 && differs) equal = false;
  }
  std::uint64_t value = 0;
  for (int i = 0; i < bits; ++i) {
    const bool swapped = equal && (work.swap_mask >> i & 1) != 0;
    value |= ((swapped ? work.operand : old) >> i & 1) << i;
  }
  return value;
}

}  // namespace

TEST_CASE("masked formulas equal a bit-by-bit reference", "[A12]") {
  const unsigned seed = 12;
  INFO("seed " << seed);
  std::mt19937_64 random(seed);
  for (int i = 0; i < 50'000; ++i) {
    AtomicWork work;
    work.bytes = random() % 2 == 0 ? 4 : 8;
    const int bits = work.bytes * 8;
    const std::uint64_t all = bits == 64 ? ~std::uint64_t{0} : 0xffffffffu;
    const auto sparse = [&] {
      const std::uint64_t one = random(), two = random();
      return one & two & all;
    };
    const std::uint64_t old = random() & all;
    work.operand = random() & all;
    work.boundary = random() % 4 == 0 ? 0 : random() % 4 == 1 ? all : sparse();
    work.form = AtomicWork::Form::add;
    REQUIRE(apply_atomic(work, old) == ripple(old, work.operand, work.boundary, bits));
    work.form = AtomicWork::Form::swap;
    work.compare = random() % 2 == 0 ? old ^ sparse() : random() & all;
    work.compare_mask = random() % 2 == 0 ? sparse() : all;
    work.swap_mask = random() & all;
    REQUIRE(apply_atomic(work, old) == select(old, work, bits));
  }
}

TEST_CASE("old values land as an adapter lands them: 8 bytes as the host's, 4 big-endian",
          "[A12]") {
  NicPair pair;
  RawPoster raw(pair.view());
  pair.b.memory[0] = 0x0102030405060708;
  pair.b.memory[1] = 0xffffffff11223344;
  const auto at = [&](std::uint64_t word, std::uint32_t bytes) {
    return pair.a.range(word * 8, bytes);
  };
  raw.add(dq::fetch_add_wqe(raw.place(), 0, pair.b.region.remote(0), 1, at(0, 8)));
  raw.add(dq::masked_fetch_add_wqe(raw.place(), 0, pair.b.region.remote(0), std::uint64_t{1}, 0,
                                   at(1, 8)));
  raw.add(dq::compare_swap_wqe(raw.place(), 0, pair.b.region.remote(0), 5, 6, at(2, 8)));
  raw.add(dq::masked_fetch_add_wqe(raw.place(), dq::kSignalled, pair.b.region.remote(8), 1u, 0u,
                                   at(3, 4)));
  raw.ring();
  pair.run();
  CHECK(pair.a.memory[0] == 0x0102030405060708);
  CHECK(pair.a.memory[1] == 0x0102030405060709);
  CHECK(pair.a.memory[2] == 0x010203040506070a);
  const auto* bytes = reinterpret_cast<const unsigned char*>(&pair.a.memory[3]);
  CHECK((bytes[0] == 0x11 && bytes[1] == 0x22 && bytes[2] == 0x33 && bytes[3] == 0x44));
  CHECK(pair.b.memory[1] == 0xffffffff11223345);
}
