// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <stdexcept>
#include <vector>

#include <catch2/catch.hpp>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include "nccl.h"

#include "support/ranks.hpp"

/// Calls of more than 2^31 elements with little memory: most of a buffer maps the same few pages
/// repeatedly. Results are checked where a count could be truncated, and at the ends of blocks.
namespace oriel::test {
namespace {

constexpr std::size_t kElements = (std::size_t{1} << 31) + 1'000'003;
constexpr int kBothRanks = 2;
constexpr std::size_t kPeriod = 1 << 20;
constexpr std::size_t kShared = kPeriod;  // where all pages are repeated ones
constexpr std::size_t kApart = 64 << 10;
constexpr std::uint8_t kCleared = 0xee;

/// Returns the wanted byte `i` of a block.
using Wanted = std::function<std::uint8_t(std::size_t i)>;

/// One or two blocks of kElements bytes, whose pages repeat. Pages around the ends of each block,
/// around 2^31 bytes after its start, and around each power of two have their own memory.
class LargeBuffer {
 public:
  explicit LargeBuffer(int blocks)
      : bytes_(static_cast<std::size_t>(blocks) * kElements),
        mapped_((bytes_ + kPeriod - 1) / kPeriod * kPeriod) {
    const int fd = ::memfd_create("large_buffer", MFD_CLOEXEC);
    if (fd < 0 || ::ftruncate(fd, kPeriod) != 0) throw std::runtime_error("no memory to show");
    data_ = map(nullptr, mapped_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1);
    for (std::size_t at = 0; at < mapped_; at += kPeriod) {
      map(data_ + at, kPeriod, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd);
    }
    ::close(fd);
    own(0, kApart);
    constexpr std::size_t kCut = std::size_t{1} << 31;
    for (std::size_t middle = kCut; middle < mapped_; middle += middle) own_around(middle);
    for (std::size_t begin = 0; begin < bytes_; begin += kElements) {
      if (begin > 0) own_around(begin);
      own_around(begin + kCut);
    }
    own(mapped_ - kPeriod, mapped_);
  }
  LargeBuffer(const LargeBuffer&) = delete;
  LargeBuffer& operator=(const LargeBuffer&) = delete;
  ~LargeBuffer() { ::munmap(data_, mapped_); }

  std::uint8_t* data() const { return data_; }

  /// Sets every byte. Bytes in own memory also encode their position.
  void fill(std::uint8_t seed) {
    for (std::size_t i = kShared; i < kShared + kPeriod; ++i) data_[i] = value(seed, i);
    for (const Part& part : own_) {
      for (std::size_t i = part.begin; i < part.end; ++i) data_[i] = value(seed, i);
    }
  }
  void clear() {
    std::fill_n(data_ + kShared, kPeriod, kCleared);
    for (const Part& part : own_) std::fill(data_ + part.begin, data_ + part.end, kCleared);
  }
  /// Returns what byte `i` of `block` is after fill(seed), in every buffer of as many blocks.
  Wanted filled(std::uint8_t seed, int block = 0) const {
    return [=, this](std::size_t i) { return value(seed, block * kElements + i); };
  }

  /// Checks the own memory of a block.
  void check(int block, const char* what, const Wanted& wanted) const {
    const std::size_t first = static_cast<std::size_t>(block) * kElements;
    for (const Part& part : own_) {
      check_range(first, std::max(part.begin, first), std::min(part.end, first + kElements), what,
                  wanted);
    }
  }
  /// Checks a block of a result that is the only one, and that nothing is written behind it. The
  /// repeated pages are checked too: what is wanted must repeat as they do.
  void check_only(const char* what, const Wanted& wanted) const {
    check_range(0, kShared, kShared + kPeriod, what, wanted);
    check(0, what, wanted);
    check_cleared(kElements, what);
  }
  /// Checks that no byte from `begin` on has been written, where memory is not shared with bytes
  /// before it.
  void check_cleared(std::size_t begin, const char* what) const {
    const Wanted cleared = [](std::size_t) { return kCleared; };
    if (begin == 0) check_range(0, kShared, kShared + kPeriod, what, cleared);
    for (const Part& part : own_) {
      check_range(0, std::max(part.begin, begin), part.end, what, cleared);
    }
  }

 private:
  struct Part {
    std::size_t begin;
    std::size_t end;
  };
  static std::uint8_t* map(void* at, std::size_t bytes, int protection, int flags, int fd) {
    void* const made = ::mmap(at, bytes, protection, flags, fd, 0);
    if (made == MAP_FAILED) throw std::runtime_error("no address space");
    return static_cast<std::uint8_t*>(made);
  }
  void own_around(std::size_t middle) {
    const std::size_t aligned = middle / kApart * kApart;
    own(aligned - kApart, std::min(aligned + 2 * kApart, mapped_));
  }
  void own(std::size_t begin, std::size_t end) {
    map(data_ + begin, end - begin, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED,
        -1);
    own_.push_back({begin, end});
  }
  /// Returns byte `i` of fill(seed). The bytes repeat with the pages, except in own memory.
  std::uint8_t value(std::uint8_t seed, std::size_t i) const {
    const bool is_own = std::any_of(own_.begin(), own_.end(), [&](const Part& part) {
      return i >= part.begin && i < part.end;
    });
    const std::size_t place = i % kPeriod;
    const std::size_t mark = is_own ? i / kPeriod % 251 + 1 : 0;
    return static_cast<std::uint8_t>((place * 31 >> 4) + place + seed + mark);
  }
  void check_range(std::size_t first, std::size_t begin, std::size_t end, const char* what,
                   const Wanted& wanted) const {
    for (std::size_t i = begin; i < end; ++i) {
      if (data_[i] == wanted(i - first)) continue;
      throw std::runtime_error(
          fmt::format("{}: byte {} is {:#x}, not {:#x}", what, i, data_[i], wanted(i - first)));
    }
  }

  std::size_t bytes_;
  std::size_t mapped_;
  std::uint8_t* data_ = nullptr;
  std::vector<Part> own_;
};

std::uint8_t seed_of(int rank) {
  return static_cast<std::uint8_t>(50 * rank + 3);
}

Wanted sum_of(const Wanted& a, const Wanted& b) {
  return [=](std::size_t i) { return static_cast<std::uint8_t>(a(i) + b(i)); };
}

/// Makes the calls that move one block to each rank.
void move_single_blocks(TestRanks& test_ranks) {
  auto comms = test_ranks.init();
  const int rank = test_ranks.first(), other = 1 - rank;
  LargeBuffer input(1);
  LargeBuffer output(1);
  input.fill(seed_of(rank));

  output.clear();
  require(ncclBroadcast(input.data(), output.data(), kElements, ncclUint8, 1, comms[0], nullptr),
          "ncclBroadcast");
  output.check_only("a broadcast", input.filled(seed_of(1)));

  output.clear();
  require(ncclGroupStart(), "ncclGroupStart");
  require(ncclSend(input.data(), kElements, ncclUint8, other, comms[0], nullptr), "ncclSend");
  require(ncclRecv(output.data(), kElements, ncclUint8, other, comms[0], nullptr), "ncclRecv");
  require(ncclGroupEnd(), "ncclGroupEnd");
  output.check_only("a send and a receive", input.filled(seed_of(other)));

  const Wanted sum = sum_of(input.filled(seed_of(0)), input.filled(seed_of(1)));
  output.clear();
  require(
      ncclAllReduce(input.data(), output.data(), kElements, ncclUint8, ncclSum, comms[0], nullptr),
      "ncclAllReduce");
  output.check_only("an all-reduce", sum);

  output.clear();
  require(
      ncclReduce(input.data(), output.data(), kElements, ncclUint8, ncclSum, 1, comms[0], nullptr),
      "ncclReduce");
  if (rank == 1) output.check_only("a reduce", sum);
  if (rank == 0) output.check_cleared(0, "a reduce to another rank");
  test_ranks.destroy(comms);
}

/// Makes the calls that gather blocks of all ranks. The blocks of a result share pages, which are
/// not checked.
void gather_blocks(TestRanks& test_ranks) {
  auto comms = test_ranks.init();
  const int rank = test_ranks.first();
  LargeBuffer input(1);
  LargeBuffer output(kBothRanks);
  input.fill(seed_of(rank));

  const auto check_all = [&](const char* what) {
    for (int from = 0; from < kBothRanks; ++from) {
      output.check(from, what, input.filled(seed_of(from)));
    }
    output.check_cleared(kBothRanks * kElements, what);
  };
  output.clear();
  require(ncclAllGather(input.data(), output.data(), kElements, ncclUint8, comms[0], nullptr),
          "ncclAllGather");
  check_all("an all-gather");

  output.clear();
  require(ncclGather(input.data(), output.data(), kElements, ncclUint8, 1, comms[0], nullptr),
          "ncclGather");
  if (rank == 1) check_all("a gather");
  if (rank == 0) output.check_cleared(0, "a gather to another rank");
  test_ranks.destroy(comms);
}

/// Makes the calls that send another block to each rank.
void scatter_blocks(TestRanks& test_ranks) {
  auto comms = test_ranks.init();
  const int rank = test_ranks.first();
  LargeBuffer input(kBothRanks);
  LargeBuffer output(kBothRanks);
  input.fill(seed_of(rank));

  output.clear();
  require(ncclAlltoAll(input.data(), output.data(), kElements, ncclUint8, comms[0], nullptr),
          "ncclAlltoAll");
  for (int from = 0; from < kBothRanks; ++from) {
    output.check(from, "an all-to-all", input.filled(seed_of(from), rank));
  }
  output.check_cleared(kBothRanks * kElements, "an all-to-all");

  output.clear();
  require(ncclScatter(input.data(), output.data(), kElements, ncclUint8, 0, comms[0], nullptr),
          "ncclScatter");
  output.check(0, "a scatter", input.filled(seed_of(0), rank));
  output.check_cleared(kElements, "a scatter");

  output.clear();
  require(ncclReduceScatter(input.data(), output.data(), kElements, ncclUint8, ncclSum, comms[0],
                            nullptr),
          "ncclReduceScatter");
  output.check(0, "a reduce-scatter",
               sum_of(input.filled(seed_of(0), rank), input.filled(seed_of(1), rank)));
  output.check_cleared(kElements, "a reduce-scatter");
  test_ranks.destroy(comms);
}

}  // namespace

TEST_CASE("every call takes more than 2^31 elements on CPUs", "[req:5.8]") {
  const auto body = GENERATE(move_single_blocks, gather_blocks, scatter_blocks);
  check_all_ok(run_ranks(LaunchMode::processes, kBothRanks, body));
}

}  // namespace oriel::test
