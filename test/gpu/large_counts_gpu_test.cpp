// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <tuple>
#include <vector>

#include <catch2/catch.hpp>
#include <fmt/format.h>

#include "gpu/gpu_ranks.hpp"

/// Tests every call with more than 2^31 elements of one byte, between two ranks.
namespace oriel::test {
namespace {

const int kGpus = gpus();  // skips the program without a GPU

constexpr std::size_t kCount = (std::size_t{1} << 31) + 4'000'003;
constexpr int kRanks = 2;
constexpr std::size_t kStretch = 4096;             // bytes that are checked at each position
constexpr std::size_t kPeriod = 5 * 7 * kStretch;  // values repeat after these bytes

/// Returns byte `at` of the block from `from` to `to`. It depends on the block, and on `at` modulo
/// 7 and its 4 KiB stretch modulo 5.
std::uint8_t value(int from, int to, std::size_t at) {
  return static_cast<std::uint8_t>(16 * from + 64 * to + 3 + at % 7 + at / kStretch % 5);
}

/// One rank with two blocks to send and two to receive.
class LargeRank {
 public:
  LargeRank(TestRanks& test_ranks, bool registered) : me_(test_ranks.first()), gpu_(me_) {
    const std::size_t bytes = (kRanks * kCount + (std::size_t{2} << 20) - 1) >> 21 << 21;
    input_ = gpu_.allocate(bytes, registered);
    output_ = gpu_.allocate(bytes, registered);
    comm_ = init_rank(test_ranks, gpu_);
    if (registered) {
      for (std::byte* const data : {input_, output_}) {
        require(ncclCommWindowRegister(comm_, data, bytes, &windows_.emplace_back(),
                                       NCCL_WIN_COLL_SYMMETRIC),
                "ncclCommWindowRegister");
      }
    }
    std::vector<std::uint8_t> block(kCount);
    for (int to = 0; to < kRanks; ++to) {
      for (std::size_t i = 0; i < kPeriod; ++i) block[i] = value(me_, to, i);
      for (std::size_t i = kPeriod; i < kCount; i += kPeriod) {
        std::copy_n(block.begin(), std::min(kPeriod, kCount - i), block.data() + i);
      }
      gpu_.copy_in(input(to), block.data(), kCount);
    }
  }
  void end(TestRanks& test_ranks) {
    for (ncclWindow_t window : windows_) {
      require(ncclCommWindowDeregister(comm_, window), "ncclCommWindowDeregister");
    }
    test_ranks.barrier();
    require(ncclCommDestroy(comm_), "ncclCommDestroy");
    test_ranks.barrier();
  }

  int me() const { return me_; }
  ncclComm_t comm() const { return comm_; }
  cudaStream_t stream() const { return gpu_.stream(); }
  std::byte* input(int block = 0) const { return at(input_, block); }
  std::byte* output(int block = 0) const { return at(output_, block); }

  void run(const char* what, const std::function<ncclResult_t()>& call) {
    what_ = what;
    require_cuda(cudaMemsetAsync(output_, 0xee, kRanks * kCount, stream()), "clearing");
    require(call(), what);
    gpu_.wait(stream(), comm_);
  }
  /// Checks a received block at its ends and at positions where a truncated count would show.
  void check(int block, const std::function<std::uint8_t(std::size_t)>& wanted) {
    std::vector<std::uint8_t> got(kStretch);
    const std::size_t cut = std::size_t{1} << 31;
    for (const std::size_t begin : {std::size_t{0}, std::size_t{1} << 30, cut - kStretch, cut,
                                    kCount / 4 * 3, kCount - kStretch}) {
      gpu_.copy_out(got.data(), output(block) + begin, kStretch);
      for (std::size_t i = 0; i < kStretch; ++i) {
        require(got[i] == wanted(begin + i),
                fmt::format("{}: byte {} of block {} is {:#x}, not {:#x}", what_, begin + i, block,
                            got[i], wanted(begin + i)));
      }
    }
  }
  /// Checks that a block has not been written.
  void check_untouched(int block) {
    check(block, [](std::size_t) { return std::uint8_t{0xee}; });
  }

 private:
  static std::byte* at(std::byte* base, int block) {
    return base + static_cast<std::size_t>(block) * kCount;
  }

  int me_;
  RankGpu gpu_;
  std::byte* input_ = nullptr;
  std::byte* output_ = nullptr;
  ncclComm_t comm_ = nullptr;
  std::vector<ncclWindow_t> windows_;
  std::string what_;
};

void move_large_counts(LargeRank& rank) {
  const auto [me, comm, stream] = std::tuple(rank.me(), rank.comm(), rank.stream());
  const int other = 1 - me;
  const auto from = [](int sender, int to) {
    return [=](std::size_t i) { return value(sender, to, i); };
  };
  rank.run("a broadcast", [&] {
    return ncclBroadcast(rank.input(), rank.output(), kCount, ncclUint8, 1, comm, stream);
  });
  rank.check(0, from(1, 0));
  rank.check_untouched(1);
  rank.run("an all-gather", [&] {
    return ncclAllGather(rank.input(), rank.output(), kCount, ncclUint8, comm, stream);
  });
  for (int block = 0; block < kRanks; ++block) rank.check(block, from(block, 0));
  rank.run("an all-to-all", [&] {
    return ncclAlltoAll(rank.input(), rank.output(), kCount, ncclUint8, comm, stream);
  });
  for (int block = 0; block < kRanks; ++block) rank.check(block, from(block, me));
  rank.run("a gather", [&] {
    return ncclGather(rank.input(), rank.output(), kCount, ncclUint8, 0, comm, stream);
  });
  for (int block = 0; block < kRanks && me == 0; ++block) rank.check(block, from(block, 0));
  rank.run("a scatter", [&] {
    return ncclScatter(rank.input(), rank.output(), kCount, ncclUint8, 0, comm, stream);
  });
  rank.check(0, from(0, me));
  rank.run("a send and a receive", [&] {
    require(ncclGroupStart(), "ncclGroupStart");
    require(ncclSend(rank.input(), kCount, ncclUint8, other, comm, stream), "ncclSend");
    require(ncclRecv(rank.output(), kCount, ncclUint8, other, comm, stream), "ncclRecv");
    return ncclGroupEnd();
  });
  rank.check(0, from(other, 0));
  rank.check_untouched(1);
}

void reduce_large_counts(LargeRank& rank) {
  const auto [me, comm, stream] = std::tuple(rank.me(), rank.comm(), rank.stream());
  const auto sum_for = [](int to) {
    return
        [=](std::size_t i) { return static_cast<std::uint8_t>(value(0, to, i) + value(1, to, i)); };
  };
  rank.run("an all-reduce", [&] {
    return ncclAllReduce(rank.input(), rank.output(), kCount, ncclUint8, ncclSum, comm, stream);
  });
  rank.check(0, sum_for(0));
  rank.check_untouched(1);
  rank.run("a reduce-scatter", [&] {
    return ncclReduceScatter(rank.input(), rank.output(), kCount, ncclUint8, ncclSum, comm, stream);
  });
  rank.check(0, sum_for(me));
  rank.run("a reduce", [&] {
    return ncclReduce(rank.input(), rank.output(), kCount, ncclUint8, ncclSum, 1, comm, stream);
  });
  if (me == 1) rank.check(0, sum_for(0));
  if (me == 0) rank.check_untouched(0);
}

}  // namespace

TEST_CASE("every call takes more than 2^31 elements on GPUs", "[req:5.8]") {
  const bool registered = GENERATE(false, true);
  CAPTURE(registered);
  const auto body = [&](TestRanks& test_ranks) {
    LargeRank rank(test_ranks, registered);
    move_large_counts(rank);
    reduce_large_counts(rank);
    rank.end(test_ranks);
  };
  check_all_ok(run_ranks(natural_cast(kRanks), kRanks, body, std::chrono::seconds(120)));
}

}  // namespace oriel::test
