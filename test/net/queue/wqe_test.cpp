// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "oriel/device/queue/wqe.hpp"

#include <atomic>
#include <cstring>
#include <numeric>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <catch2/catch.hpp>

#include "net/queue/golden_wqes.hpp"

// WQEs written by device code, against hand-written vectors (3.12).
using namespace oriel::device::queue;
namespace golden = oriel::net::golden;

namespace {

constexpr Place kPlace{golden::kQueue, golden::kIndex};
constexpr RemoteAddress kRemote{golden::kRemote, golden::kRkey};
constexpr LocalRange local(std::uint32_t bytes) {
  return {golden::kLocal, golden::kLkey, bytes};
}

// Returns as many parts as the WQE says it has.
template <std::uint32_t kParts>
std::vector<std::byte> bytes_of(const Wqe<kParts>& wqe) {
  std::vector<std::byte> bytes(kParts * 16);
  std::memcpy(bytes.data(), wqe.part, bytes.size());
  const auto parts = static_cast<std::size_t>(bytes[7]) & 0x3f;
  REQUIRE(parts <= kParts);
  bytes.resize(parts * 16);
  return bytes;
}

InlineBytes counting(std::uint32_t count) {
  unsigned char bytes[28];
  std::iota(std::begin(bytes), std::end(bytes), static_cast<unsigned char>(1));
  return {bytes, count};
}

}  // namespace

TEST_CASE("bytes in a WQE are those of the source, wherever it lies", "[req:3.1]") {
  const InlineBytes none(nullptr, 0);
  CHECK(none.bytes == 0);
  CHECK(none.word[0] == 0);
  alignas(8) unsigned char memory[40];
  std::iota(std::begin(memory), std::end(memory), static_cast<unsigned char>(1));
  for (std::uint32_t skip = 0; skip < 8; ++skip) {
    for (std::uint32_t count = 1; count <= kInlineBytesMost; ++count) {
      const InlineBytes bytes(memory + skip, count);
      unsigned char expected[kInlineBytesMost] = {};
      std::memcpy(expected, memory + skip, count);
      INFO(count << " bytes at " << skip);
      CHECK(bytes.bytes == count);
      CHECK(std::memcmp(bytes.word, expected, sizeof expected) == 0);
    }
  }
}

// ONE_THREAD excludes this program from the thread sanitizer, which would report a race.
TEST_CASE("a word that another thread stores comes into a WQE as a whole", "[req:3.1]") {
  constexpr std::uint64_t kOnes = ~std::uint64_t{0};
  alignas(8) std::uint64_t words[3] = {};
  std::atomic<bool> stop = false;
  std::thread writer([&] {
    for (std::uint64_t value = kOnes; !stop; value = ~value) {
      for (auto& word : words) std::atomic_ref(word).store(value, std::memory_order_relaxed);
    }
  });
  const auto is_torn = [](std::uint32_t low, std::uint32_t high) {
    return low != high || (low != 0 && low != 0xffffffffu);
  };
  int torn = 0;
  for (int i = 0; i < 1'000'000; ++i) {
    const InlineBytes bytes(reinterpret_cast<const unsigned char*>(words), sizeof words);
    for (int k = 0; k < 6; k += 2) torn += is_torn(bytes.word[k], bytes.word[k + 1]) ? 1 : 0;
  }
  stop = true;
  writer.join();
  CHECK(torn == 0);
}

// Masked atomics and the dump are unverified on hardware.
TEST_CASE("each kind of WQE has the bytes that the format prescribes", "[req:3.12][A12]") {
  const LocalRange bulk = local(golden::kBytes);
  constexpr std::uint64_t kA = 0xa1a2a3a4a5a6a7a8, kB = 0xb1b2b3b4b5b6b7b8, kC = 0xc1c2c3c4c5c6c7c8,
                          kD = 0xd1d2d3d4d5d6d7d8, kE = 0xe1e2e3e4e5e6e7e8;
  constexpr auto high = [](std::uint64_t word) { return static_cast<std::uint32_t>(word >> 32); };
  const MaskedSwap<std::uint32_t> swap4{high(kA), high(kB), high(kC), high(kD)};
  const MaskedSwap<std::uint64_t> swap8{kA, kB, kC, kD};
  const std::pair<std::vector<std::byte>, std::string_view> all[] = {
      {bytes_of(transfer_wqe(Opcode::write, kPlace, kSignalled, kRemote, bulk)), golden::kWrite},
      {bytes_of(
           transfer_wqe(Opcode::write_immediate, kPlace, kSignalled, kRemote, bulk, 0x5a6b7c8d)),
       golden::kWriteImmediate},
      {bytes_of(transfer_wqe(Opcode::read, kPlace, kFenced, kRemote, bulk)), golden::kReadFenced},
      {bytes_of(inline_write_wqe(kPlace, 0, kRemote, counting(1))), golden::kInline1},
      {bytes_of(inline_write_wqe(kPlace, kSignalled, kRemote, counting(12))), golden::kInline12},
      {bytes_of(inline_write_wqe(kPlace, kSignalled, kRemote, counting(28))), golden::kInline28},
      {bytes_of(compare_swap_wqe(kPlace, kSignalled, kRemote, kA, kB, local(8))),
       golden::kCompareSwap},
      {bytes_of(fetch_add_wqe(kPlace, kSignalled | kFenced, kRemote, kA, local(8))),
       golden::kFetchAdd},
      {bytes_of(masked_compare_swap_wqe(kPlace, kSignalled, kRemote, swap4, local(4))),
       golden::kMaskedSwap4},
      {bytes_of(masked_compare_swap_wqe(kPlace, 0, kRemote, swap8, local(8))),
       golden::kMaskedSwap8},
      {bytes_of(masked_fetch_add_wqe(kPlace, kSignalled, kRemote, high(kA), high(kE), local(4))),
       golden::kMaskedAdd4},
      {bytes_of(masked_fetch_add_wqe(kPlace, kSignalled, kRemote, kA, kE, local(8))),
       golden::kMaskedAdd8},
      {bytes_of(dump_wqe(kPlace, kSignalled | kFenced, local(8))), golden::kDump},
      {bytes_of(nop_wqe(kPlace, kSignalled)), golden::kNop}};
  for (const auto& [bytes, hex] : all) {
    INFO(hex);
    CHECK(bytes == golden::bytes_of(hex));
  }
}
