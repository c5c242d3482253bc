// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "net/queue/work_reader.hpp"

#include <algorithm>
#include <cstring>
#include <random>

#include <catch2/catch.hpp>

#include "net/queue/golden_wqes.hpp"

// Reads hand-written WQEs (3.12), and then such WQEs with violations of the format (3.8).
using namespace oriel;
using namespace oriel::net;

namespace {

constexpr std::uint32_t kDepth = 128;

struct Ring {
  explicit Ring(std::string_view hex, std::uint64_t index = golden::kIndex)
      : bytes(kDepth * 64, std::byte{0xee}) {
    const auto wqe = golden::bytes_of(hex);
    for (std::size_t i = 0; i < wqe.size(); ++i) at(index, i) = wqe[i];
  }
  std::byte& at(std::uint64_t index, std::size_t offset) {
    return bytes[((index + offset / 64) % kDepth) * 64 + offset % 64];
  }
  WorkReader::Wqe read(std::uint64_t index = golden::kIndex, std::uint64_t wqebbs = 64) {
    return WorkReader(bytes.data(), kDepth, golden::kQueue).read(index, index + wqebbs);
  }
  std::vector<std::byte> bytes;
};

/// Reads a vector, which must be valid. Checks its index and, if `has_remote`, its remote address
/// and key.
WorkRequest work_of(std::string_view hex, bool has_remote = true) {
  const auto wqe = Ring(hex).read();
  REQUIRE(wqe.complaint == Complaint::none);
  REQUIRE(wqe.syndrome == Syndrome::none);
  CHECK(wqe.work.index == golden::kIndex);
  if (has_remote) CHECK(wqe.work.remote_address == golden::kRemote);
  if (has_remote) CHECK(wqe.work.rkey == golden::kRkey);
  return wqe.work;
}

void check_local(const WorkRequest& work, std::uint64_t bytes) {
  CHECK(work.local_address == golden::kLocal);
  CHECK(work.lkey == golden::kLkey);
  CHECK(work.bytes == bytes);
}

// Reads a vector with the byte at `offset` replaced.
WorkReader::Wqe spoilt(std::string_view hex, std::size_t offset, unsigned value) {
  Ring ring(hex);
  ring.at(golden::kIndex, offset) = static_cast<std::byte>(value);
  return ring.read();
}

const std::vector<std::string_view> kAll = {
    golden::kWrite,       golden::kWriteImmediate, golden::kReadFenced,  golden::kWriteOfNothing,
    golden::kInline1,     golden::kInline12,       golden::kInline28,    golden::kInline100,
    golden::kCompareSwap, golden::kFetchAdd,       golden::kMaskedSwap4, golden::kMaskedSwap8,
    golden::kMaskedAdd4,  golden::kMaskedAdd8,     golden::kDump,        golden::kNop};

}  // namespace

TEST_CASE("writes and reads are read as the format says", "[req:3.12]") {
  const WorkRequest write = work_of(golden::kWrite);
  CHECK(write.kind == WorkKind::write);
  CHECK(write.opcode == 0x08);
  CHECK(write.wqebbs == 1);
  CHECK(write.signalled);
  CHECK(write.fence == FenceMode::none);
  CHECK_FALSE(write.has_immediate);
  CHECK_FALSE(write.is_inline);
  check_local(write, golden::kBytes);

  const WorkRequest immediate = work_of(golden::kWriteImmediate);
  CHECK(immediate.kind == WorkKind::write);
  CHECK(immediate.has_immediate);
  CHECK(immediate.immediate == 0x5a6b7c8d);
  check_local(immediate, golden::kBytes);

  const WorkRequest read = work_of(golden::kReadFenced);
  CHECK(read.kind == WorkKind::read);
  CHECK_FALSE(read.signalled);
  CHECK(read.fence == FenceMode::reads_and_atomics);
  check_local(read, golden::kBytes);

  CHECK(work_of(golden::kWriteOfNothing).bytes == 0);

  const auto on_error = spoilt(golden::kWrite, 11, 0x04);  // completes only on error
  CHECK(on_error.syndrome == Syndrome::none);
  CHECK_FALSE(on_error.work.signalled);
}

TEST_CASE("bytes that stand in the WQE are found, also across WQEBBs and the ring's end",
          "[req:3.12]") {
  for (const auto& [hex, count, wqebbs] : {std::tuple{golden::kInline1, 1u, 1u},
                                           {golden::kInline12, 12u, 1u},
                                           {golden::kInline28, 28u, 1u},
                                           {golden::kInline100, 100u, 3u}}) {
    const WorkRequest work = work_of(hex);
    CHECK(work.kind == WorkKind::write);
    CHECK(work.is_inline);
    CHECK(work.wqebbs == wqebbs);
    REQUIRE(work.bytes == count);
    REQUIRE(work.inline_bytes.size() == count);
    for (unsigned i = 0; i < count; ++i) CHECK(work.inline_bytes[i] == std::byte(i + 1));
  }
  // The three WQEBBs are the ring's last, first and second.
  const std::uint64_t last = 0x7f;
  Ring ring(golden::kInline100, last);
  ring.at(last, 1) = std::byte{0x00};
  ring.at(last, 2) = std::byte{0x7f};
  const auto wqe = ring.read(last);
  REQUIRE(wqe.syndrome == Syndrome::none);
  CHECK(wqe.work.inline_bytes[99] == std::byte{100});
}

// Unverified on hardware, except the first two and the last.
TEST_CASE("atomics, dumps and nops are read as the format says", "[req:3.12][A12]") {
  struct Atomic {
    std::string_view hex;
    AtomicWork::Form form;
    std::uint8_t bytes;
    std::uint64_t operand, compare, swap_mask, compare_mask, boundary;
  };
  using Form = AtomicWork::Form;
  constexpr std::uint64_t kA = 0xa1a2a3a4a5a6a7a8, kB = 0xb1b2b3b4b5b6b7b8, kC = 0xc1c2c3c4c5c6c7c8,
                          kD = 0xd1d2d3d4d5d6d7d8, kE = 0xe1e2e3e4e5e6e7e8, kAll8 = ~0ULL;
  for (const Atomic& wanted :
       {Atomic{golden::kCompareSwap, Form::swap, 8, kA, kB, kAll8, kAll8, 0},
        Atomic{golden::kFetchAdd, Form::add, 8, kA, 0, 0, 0, 0},
        Atomic{golden::kMaskedSwap4, Form::swap, 4, kA >> 32, kB >> 32, kC >> 32, kD >> 32, 0},
        Atomic{golden::kMaskedSwap8, Form::swap, 8, kA, kB, kC, kD, 0},
        Atomic{golden::kMaskedAdd4, Form::add, 4, kA >> 32, 0, 0, 0, kE >> 32},
        Atomic{golden::kMaskedAdd8, Form::add, 8, kA, 0, 0, 0, kE}}) {
    INFO(wanted.hex);
    const WorkRequest work = work_of(wanted.hex);
    CHECK(work.kind == WorkKind::atomic);
    CHECK(work.wqebbs == (wanted.hex == golden::kMaskedSwap8 ? 2u : 1u));
    CHECK(work.signalled == (wanted.hex != golden::kMaskedSwap8));
    CHECK((work.fence == FenceMode::reads_and_atomics) == (wanted.hex == golden::kFetchAdd));
    check_local(work, wanted.bytes);
    CHECK(work.atomic.form == wanted.form);
    CHECK(work.atomic.bytes == wanted.bytes);
    CHECK(work.atomic.operand == wanted.operand);
    if (wanted.form == Form::add) {
      CHECK(work.atomic.boundary == wanted.boundary);
      continue;
    }
    CHECK(work.atomic.compare == wanted.compare);
    CHECK(work.atomic.swap_mask == wanted.swap_mask);
    CHECK(work.atomic.compare_mask == wanted.compare_mask);
  }
  const WorkRequest dump = work_of(golden::kDump, false);
  CHECK(dump.kind == WorkKind::dump);
  CHECK(dump.fence == FenceMode::reads_and_atomics);
  check_local(dump, 8);
  const WorkRequest nop = work_of(golden::kNop, false);
  CHECK(nop.kind == WorkKind::nop);
  CHECK(nop.signalled);
}

TEST_CASE("a WQE of another index or queue, or one that was poisoned, is refused", "[req:3.8]") {
  for (const auto hex : kAll) {
    CHECK(spoilt(hex, 1, 0xac).complaint == Complaint::wrong_index);
    CHECK(spoilt(hex, 2, 0xcc).complaint == Complaint::wrong_index);
    CHECK(spoilt(hex, 4, 0x02).complaint == Complaint::wrong_queue);
    CHECK(spoilt(hex, 6, 0x44).complaint == Complaint::wrong_queue);
    CHECK(spoilt(hex, 6, 0x44).syndrome == Syndrome::local_operation);
  }
  Ring poisoned(golden::kNop);
  std::memset(poisoned.bytes.data(), 0xdd, poisoned.bytes.size());
  CHECK(poisoned.read().complaint == Complaint::wrong_index);
  // Refuses the poison even if the poison equals the expected index.
  CHECK(poisoned.read(0xdddd).complaint == Complaint::wrong_queue);
}

TEST_CASE("sizes, modifiers, flags and reserved bits that the format lacks are refused",
          "[req:3.8]") {
  for (const auto hex : kAll) {
    const auto bytes = golden::bytes_of(hex);
    const auto parts = static_cast<unsigned>(bytes[7]), opcode = static_cast<unsigned>(bytes[3]);
    CHECK(spoilt(hex, 7, 0).complaint == Complaint::wrong_size);
    CHECK(spoilt(hex, 7, parts | 0x40).complaint == Complaint::reserved_bits);
    CHECK(spoilt(hex, 7, parts | 0x80).complaint == Complaint::reserved_bits);
    CHECK(spoilt(hex, 0, 0x0a).complaint == Complaint::wrong_modifier);
    for (const std::size_t reserved : {8u, 9u, 10u}) {
      CHECK(spoilt(hex, reserved, 1).complaint == Complaint::reserved_bits);
    }
    for (const unsigned flags : {0x01u, 0x10u, 0xa0u, 0xc8u, 0xe0u}) {
      CHECK(spoilt(hex, 11, flags).complaint == Complaint::wrong_flags);
    }
    if (hex != golden::kWriteImmediate) {
      CHECK(spoilt(hex, 15, 1).complaint == Complaint::reserved_bits);
    }
    if (hex != golden::kNop && hex != golden::kDump) {
      CHECK(spoilt(hex, 31, 1).complaint == Complaint::reserved_bits);
    }
    // No-ops, reads and writes may also have two parts.
    const bool may_have_two = opcode == 0x00 || (opcode >= 0x08 && opcode <= 0x10);
    for (unsigned other = 1; other < 64; ++other) {
      const bool valid = other == parts || (other == 2 && may_have_two);
      CHECK((spoilt(hex, 7, other).syndrome == Syndrome::none) == valid);
    }
  }
  CHECK(spoilt(golden::kFetchAdd, 47, 1).complaint == Complaint::reserved_bits);
  CHECK(spoilt(golden::kMaskedAdd4, 40, 1).complaint == Complaint::reserved_bits);
  CHECK(spoilt(golden::kMaskedAdd4, 0, 0).complaint == Complaint::wrong_modifier);
  CHECK(spoilt(golden::kMaskedSwap8, 0, 0x08).complaint == Complaint::wrong_size);
}

TEST_CASE("no opcode but those of the NIC is taken", "[req:3.8]") {
  const std::vector<unsigned> known = {0x00, 0x08, 0x09, 0x10, 0x11, 0x12, 0x14, 0x15, 0x23};
  for (unsigned opcode = 0; opcode < 256; ++opcode) {
    if (std::find(known.begin(), known.end(), opcode) != known.end()) continue;
    const auto wqe = spoilt(golden::kNop, 3, opcode);
    CHECK(wqe.complaint == Complaint::wrong_opcode);
    CHECK(wqe.syndrome == Syndrome::local_operation);
    CHECK(wqe.work.opcode == opcode);
  }
}

TEST_CASE("a WQE that goes on behind what was rung is not read", "[req:3.8]") {
  CHECK(Ring(golden::kInline100).read(golden::kIndex, 3).syndrome == Syndrome::none);
  CHECK(Ring(golden::kInline100).read(golden::kIndex, 2).complaint == Complaint::not_rung);
  CHECK(Ring(golden::kMaskedSwap8).read(golden::kIndex, 1).complaint == Complaint::not_rung);
}

TEST_CASE("lengths that do not fit the operation are refused with the syndrome for lengths",
          "[req:3.8]") {
  for (const auto hex : {golden::kFetchAdd, golden::kCompareSwap, golden::kMaskedAdd8,
                         golden::kMaskedAdd4, golden::kMaskedSwap4}) {
    const auto wqe = spoilt(hex, 51, 16);
    CHECK(wqe.complaint == Complaint::data_length);
    CHECK(wqe.syndrome == Syndrome::local_length);
  }
  CHECK(spoilt(golden::kMaskedSwap8, 67, 4).complaint == Complaint::data_length);
  // 0x40123456 bytes are more than 1 GiB. A length of 0 means 2 GiB.
  CHECK(spoilt(golden::kWrite, 32, 0x40).complaint == Complaint::data_length);
  Ring none(golden::kReadFenced);
  for (std::size_t i = 32; i < 36; ++i) none.at(golden::kIndex, i) = std::byte{0};
  CHECK(none.read().complaint == Complaint::data_length);
  // A read cannot have inline data.
  CHECK(spoilt(golden::kReadFenced, 32, 0x80).complaint == Complaint::data_length);
  CHECK(spoilt(golden::kInline12, 35, 13).complaint == Complaint::inline_length);
  CHECK(spoilt(golden::kInline28, 35, 12).complaint == Complaint::inline_length);
  CHECK(spoilt(golden::kInline100, 33, 0xff).complaint == Complaint::inline_length);
}

TEST_CASE("random WQEBBs are read without harm, and hardly ever taken for work", "[req:3.8]") {
  const unsigned seed = 20261;
  INFO("seed " << seed);
  std::mt19937_64 random(seed);
  std::vector<std::byte> ring(kDepth * 64);
  WorkReader reader(ring.data(), kDepth, golden::kQueue);
  unsigned taken = 0;
  for (int round = 0; round < 2000; ++round) {
    for (std::size_t i = 0; i < ring.size(); i += 8) {
      const std::uint64_t value = random();
      std::memcpy(&ring[i], &value, 8);
    }
    const std::uint64_t start = random() % 1'000'000;
    for (std::uint64_t index = start; index < start + kDepth; ++index) {
      const std::uint64_t rung = index + 1 + random() % kDepth;
      const auto wqe = reader.read(index, rung);
      if (wqe.syndrome == Syndrome::none) ++taken;
      CHECK((wqe.work.wqebbs >= 1 && wqe.work.wqebbs <= rung - index));
    }
  }
  CHECK(taken == 0);
}
