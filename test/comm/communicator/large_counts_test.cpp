// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <vector>

#include <catch2/catch.hpp>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include "nccl.h"

#include "support/ranks.hpp"

/// Calls of more than 2^31 elements with little memory: most of a buffer maps the same few pages
/// repeatedly. Results are checked where a count could be truncated, and at the end.
namespace oriel::test {
namespace {

constexpr std::size_t kElements = (std::size_t{1} << 31) + 1'000'003;
constexpr std::size_t kPeriod = 1 << 20;
constexpr std::size_t kApart = 64 << 10;

/// A buffer of bytes whose pages repeat. Pages around each power of two from 2^31 on, and at the
/// end, have their own memory.
class LargeBuffer {
 public:
  explicit LargeBuffer(std::size_t bytes) : bytes_(bytes), mapped_(round_up_to_period(bytes)) {
    const int fd = ::memfd_create("large_buffer", MFD_CLOEXEC);
    if (fd < 0 || ::ftruncate(fd, kPeriod) != 0) throw std::runtime_error("no memory to show");
    data_ = map(nullptr, mapped_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1);
    for (std::size_t at = 0; at < mapped_; at += kPeriod) {
      map(data_ + at, kPeriod, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd);
    }
    ::close(fd);
    for (std::size_t middle = std::size_t{1} << 31; middle < mapped_; middle += middle) {
      own(middle - kApart, 2 * kApart);
    }
    own(mapped_ - kPeriod, kPeriod);
  }
  LargeBuffer(const LargeBuffer&) = delete;
  LargeBuffer& operator=(const LargeBuffer&) = delete;
  ~LargeBuffer() { ::munmap(data_, mapped_); }

  std::uint8_t* data() const { return data_; }

  /// Sets every byte. Bytes in own memory also encode their position.
  void fill(std::uint8_t seed) {
    for (std::size_t i = 0; i < kPeriod; ++i) data_[i] = value(seed, i);
    for (const Part& part : own_) {
      for (std::size_t i = 0; i < part.bytes; ++i) {
        data_[part.at + i] = value(seed, part.at + i);
      }
    }
  }
  void clear() {
    std::fill_n(data_, kPeriod, std::uint8_t{0xee});
    for (const Part& part : own_) std::fill_n(data_ + part.at, part.bytes, std::uint8_t{0xee});
  }
  /// Checks that the first `bytes` bytes equal `factor` times those of fill(seed).
  void check(std::uint8_t seed, std::size_t bytes, int factor, const char* what) const {
    const auto check_range = [&](std::size_t at, std::size_t count) {
      for (std::size_t i = at; i < at + count; ++i) {
        const auto wanted = static_cast<std::uint8_t>(i < bytes ? factor * value(seed, i) : 0xee);
        if (data_[i] != wanted) {
          throw std::runtime_error(
              fmt::format("{}: byte {} is {:#x}, not {:#x}", what, i, data_[i], wanted));
        }
      }
    };
    check_range(0, kPeriod);
    for (const Part& part : own_) check_range(part.at, part.bytes);
  }

 private:
  struct Part {
    std::size_t at;
    std::size_t bytes;
  };
  static std::size_t round_up_to_period(std::size_t bytes) {
    return (bytes + kPeriod - 1) / kPeriod * kPeriod;
  }
  static std::uint8_t* map(void* at, std::size_t bytes, int protection, int flags, int fd) {
    void* const made = ::mmap(at, bytes, protection, flags, fd, 0);
    if (made == MAP_FAILED) throw std::runtime_error("no address space");
    return static_cast<std::uint8_t*>(made);
  }
  void own(std::size_t at, std::size_t bytes) {
    map(data_ + at, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1);
    own_.push_back({at, bytes});
  }
  /// Returns byte `i` of fill(seed). The bytes repeat with the pages, except in own memory.
  std::uint8_t value(std::uint8_t seed, std::size_t i) const {
    const bool is_own = std::any_of(own_.begin(), own_.end(), [&](const Part& part) {
      return i >= part.at && i < part.at + part.bytes;
    });
    const std::size_t place = i % kPeriod;
    const auto mark = static_cast<std::uint8_t>(is_own ? i / kPeriod + 1 : 0);
    return static_cast<std::uint8_t>((place * 31 >> 4) + place + seed + mark);
  }

  std::size_t bytes_;
  std::size_t mapped_;
  std::uint8_t* data_ = nullptr;
  std::vector<Part> own_;
};

void call_with_large_counts(TestRanks& test_ranks) {
  auto comms = test_ranks.init();
  const int rank = test_ranks.first();
  const auto seed = [](int of) { return static_cast<std::uint8_t>(50 * of + 3); };
  LargeBuffer input(kElements);
  LargeBuffer output(kElements);
  input.fill(seed(rank));

  output.clear();
  require(ncclBroadcast(input.data(), output.data(), kElements, ncclUint8, 1, comms[0], nullptr),
          "ncclBroadcast");
  output.check(seed(1), kElements, 1, "a broadcast");

  output.clear();
  require(ncclGroupStart(), "ncclGroupStart");
  require(ncclSend(input.data(), kElements, ncclUint8, 1 - rank, comms[0], nullptr), "ncclSend");
  require(ncclRecv(output.data(), kElements, ncclUint8, 1 - rank, comms[0], nullptr), "ncclRecv");
  require(ncclGroupEnd(), "ncclGroupEnd");
  output.check(seed(1 - rank), kElements, 1, "a send and a receive");

  input.fill(seed(0));  // equal on both ranks, so that the sum is twice the input
  output.clear();
  require(
      ncclAllReduce(input.data(), output.data(), kElements, ncclUint8, ncclSum, comms[0], nullptr),
      "ncclAllReduce");
  output.check(seed(0), kElements, 2, "an all-reduce");
  test_ranks.destroy(comms);
}

}  // namespace

TEST_CASE("more than 2^31 elements arrive, are sent, and are added", "[req:5.8]") {
  check_all_ok(run_ranks(LaunchMode::processes, 2, call_with_large_counts));
}

}  // namespace oriel::test
