// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include <catch2/catch.hpp>
#include <fmt/format.h>
#include <sys/uio.h>
#include <unistd.h>

#include "nccl.h"

#include "base/system_table.hpp"
#include "comm/communicator/random_all_reduces.hpp"
#include "comm/support/in_teams.hpp"
#include "support/ranks.hpp"
#include "support/sanitized.hpp"
#include "support/seed.hpp"

/// Special cases of collectives built from sends and receives.
/// test/comm/group/random_groups_test.cpp compares all of them with a reference.
namespace oriel::test {

TEST_CASE("a root that is ahead by many small broadcasts overwrites nothing, all data are right",
          "[req:5.8]") {
  const std::uint64_t seed = test_seed();
  check_all_ok(run_ranks(LaunchMode::processes, 3, [&](TestRanks& test_ranks) {
    auto comms = test_ranks.init();
    const int calls = scaled(repeats(2'000));
    for (int i = 0; i < calls; ++i) {
      // The root of consecutive calls waits for no other rank.
      const int root = i / 50 % 3;
      std::uint64_t word =
          test_ranks.first() == root ? mix(seed, static_cast<std::uint64_t>(i)) : 0;
      require(ncclBcast(&word, 1, ncclUint64, root, comms[0], nullptr), "ncclBcast");
      require(word == mix(seed, static_cast<std::uint64_t>(i)), fmt::format("call {}", i));
      if (i % 97 == 0) {
        float one = 1;
        require(ncclAllReduce(&one, &one, 1, ncclFloat, ncclSum, comms[0], nullptr), "all-reduce");
        require(one == 3, "the sum");
      }
    }
    test_ranks.destroy(comms);
  }));
}

namespace {

/// Makes calls with one wrong argument, on rank 0 of two.
void make_wrong_calls(TestRanks& test_ranks) {
  auto comms = test_ranks.init();
  ncclComm_t comm = comms[0];
  float data[16] = {};
  const auto refused = [](ncclResult_t result, const std::vector<std::string>& words) {
    expect_error(result, ncclInvalidArgument, "a wrong call", words);
  };
  if (test_ranks.first() == 0) {
    for (const int root : {-1, 2}) {
      const std::string text = fmt::format("root is {}, but ranks go from 0 to 1", root);
      refused(ncclBroadcast(data, data, 1, ncclFloat, root, comm, nullptr), {"a broadcast", text});
      refused(ncclBcast(data, 0, ncclFloat, root, comm, nullptr), {"ncclBcast", text});
      refused(ncclReduce(data, data, 1, ncclFloat, ncclSum, root, comm, nullptr),
              {"a reduce", text});
      refused(ncclGather(data, data + 8, 1, ncclFloat, root, comm, nullptr), {"a gather", text});
      refused(ncclScatter(data, data + 8, 1, ncclFloat, root, comm, nullptr), {"a scatter", text});
    }
    refused(ncclBroadcast(nullptr, data, 1, ncclFloat, 0, comm, nullptr), {"sendbuff is null"});
    refused(ncclBroadcast(nullptr, nullptr, 1, ncclFloat, 1, comm, nullptr), {"recvbuff is null"});
    refused(ncclReduce(nullptr, data, 1, ncclFloat, ncclSum, 1, comm, nullptr),
            {"sendbuff is null"});
    refused(ncclReduce(data, nullptr, 1, ncclFloat, ncclSum, 0, comm, nullptr),
            {"recvbuff is null"});
    refused(ncclGather(data, nullptr, 1, ncclFloat, 0, comm, nullptr), {"recvbuff is null"});
    refused(ncclScatter(nullptr, data, 1, ncclFloat, 0, comm, nullptr), {"sendbuff is null"});
    refused(ncclAlltoAll(nullptr, data, 1, ncclFloat, comm, nullptr), {"sendbuff is null"});
    refused(ncclAlltoAll(data, data + 1, 1, ncclFloat, comm, nullptr), {"are not equal"});
    refused(ncclBroadcast(data, data + 1, 2, ncclFloat, 0, comm, nullptr), {"are not equal"});
    refused(ncclReduce(data, data + 1, 2, ncclFloat, ncclSum, 0, comm, nullptr), {"are not equal"});
    refused(ncclGather(data + 1, data, 2, ncclFloat, 0, comm, nullptr),
            {"sendbuff is not recvbuff + root * count elements"});
    refused(ncclScatter(data, data + 1, 2, ncclFloat, 0, comm, nullptr),
            {"recvbuff is not sendbuff + root * count elements"});
    auto* const odd = reinterpret_cast<float*>(reinterpret_cast<char*>(data) + 1);
    refused(ncclReduce(odd, data + 8, 1, ncclFloat, ncclSum, 0, comm, nullptr),
            {"sendbuff is not aligned to f32"});
    refused(ncclAlltoAll(data, data + 8, SIZE_MAX / 8, ncclFloat, comm, nullptr),
            {"is larger than memory"});
    refused(ncclGather(data, data + 8, SIZE_MAX / 8 / 4, ncclFloat, 0, comm, nullptr),
            {"is larger than memory"});
    refused(ncclBroadcast(data, data, 1, ncclNumTypes, 0, comm, nullptr), {"datatype is 12"});
    refused(
        ncclScatter(data, data + 8, 1, ncclFloat, 0, comm, reinterpret_cast<cudaStream_t>(data)),
        {"the stream is not null"});
  }
  test_ranks.barrier();
  // The refused calls had no effect. Calls with no elements need no buffers.
  require(ncclBcast(nullptr, 0, ncclFloat, 1, comm, nullptr), "no elements");
  require(ncclAlltoAll(nullptr, nullptr, 0, ncclFloat, comm, nullptr), "no elements");
  data[0] = test_ranks.first() == 1 ? 5 : 0;
  require(ncclBcast(data, 1, ncclFloat, 1, comm, nullptr), "a right call");
  require(data[0] == 5, "what was broadcast");
  test_ranks.destroy(comms);
}

/// Checks that a call that returned `done` fails because ranks are in different calls.
void end_in_different_calls(TestRanks& test_ranks, std::vector<ncclComm_t>& comms,
                            ncclResult_t done) {
  const ncclResult_t result = done == ncclSuccess ? await_failure(comms[0]) : done;
  require(result == ncclInvalidUsage || result == ncclRemoteError, "it failed");
  require_words(ncclGetLastError(comms[0]), {"are in different calls"});
  test_ranks.barrier();
  test_ranks.destroy(comms);
}

}  // namespace

TEST_CASE("a wrong argument of an exchanged collective is refused by name, nothing is started",
          "[req:5.8]") {
  check_all_ok(run_ranks(LaunchMode::processes, 2, make_wrong_calls));
}

TEST_CASE("ranks that name different roots get an error that says so", "[req:5.8][req:1.38]") {
  const Environment bounded(Variables{{"ORIEL_COLLECTIVE_TIMEOUT", "20s"}});
  check_all_ok(run_ranks(LaunchMode::processes, 3, [](TestRanks& test_ranks) {
    auto comms = test_ranks.init();
    std::vector<float> data(1'000'000);
    const int root = test_ranks.first() == 2 ? 1 : 0;
    // The root sends what fits into the channels, and detects the difference later.
    end_in_different_calls(test_ranks, comms,
                           ncclBcast(data.data(), data.size(), ncclFloat, root, comms[0], nullptr));
  }));
}

TEST_CASE("two ranks that both broadcast as the root end their calls, the next receive fails",
          "[req:5.8][req:1.38]") {
  const Environment bounded(Variables{{"ORIEL_COLLECTIVE_TIMEOUT", "20s"}});
  check_all_ok(run_ranks(LaunchMode::processes, 2, [](TestRanks& test_ranks) {
    auto comms = test_ranks.init();
    float value = 1;
    require(ncclBcast(&value, 1, ncclFloat, test_ranks.first(), comms[0], nullptr), "only sends");
    // Rank 1 finds the message of the first call.
    end_in_different_calls(test_ranks, comms,
                           ncclBcast(&value, 1, ncclFloat, 0, comms[0], nullptr));
  }));
}

TEST_CASE("a collective and a receive that wait for each other get an error that names both",
          "[req:1.38][req:5.22]") {
  const Environment bounded(Variables{{"ORIEL_COLLECTIVE_TIMEOUT", "60s"}});
  const LaunchMode launch_mode = GENERATE(LaunchMode::processes, LaunchMode::threads);
  INFO(name_of(launch_mode));
  check_all_ok(run_ranks(launch_mode, 2, [](TestRanks& test_ranks) {
    for (const bool gathers : {true, false}) {
      auto comms = test_ranks.init();
      std::vector<float> data(4);
      ncclResult_t done = ncclSuccess;
      if (test_ranks.first() == 1) {
        done = ncclRecv(data.data(), 2, ncclFloat, 0, comms[0], nullptr);
      } else if (gathers) {
        done = ncclAllGather(data.data(), data.data(), 2, ncclFloat, comms[0], nullptr);
      } else {
        done = ncclAllReduce(data.data(), data.data(), 2, ncclFloat, ncclSum, comms[0], nullptr);
      }
      const std::string in =
          gathers ? "an all-gather of 2 x f32" : "an all-reduce (sum) of 2 x f32";
      expect_error(done, ncclInvalidUsage, "the call",
                   {"ranks 0 and 1 are in different calls", in, "rank 1 in a receive from rank 0"});
      test_ranks.barrier();
      test_ranks.destroy(comms);
    }
  }));
}

namespace {

/// Returns bytes that are finite numbers in every type.
std::vector<std::byte> finite_bytes(std::size_t count, std::uint64_t seed) {
  constexpr std::byte kNoTopExponentBit{0xbf};
  std::vector<std::byte> bytes(count);
  for (std::size_t i = 0; i < count; ++i) bytes[i] = std::byte(mix(seed, i)) & kNoTopExponentBit;
  return bytes;
}

/// Reduces to each root in and out of place, and compares the bits with those of an all-reduce.
void compare_reduces(ncclComm_t comm, int rank, std::size_t count, DataType type,
                     std::uint64_t seed) {
  const std::size_t bytes = count * size_of(type);
  const auto nccl_type = static_cast<ncclDataType_t>(type);
  const auto input = finite_bytes(bytes, seed + static_cast<std::uint64_t>(rank));
  for (const ncclRedOp_t op : {ncclSum, ncclProd, ncclMax, ncclMin, ncclAvg}) {
    std::vector<std::byte> sum(bytes);
    require(ncclAllReduce(input.data(), sum.data(), count, nccl_type, op, comm, nullptr), "all");
    for (const int root : {0, 1}) {
      std::vector<std::byte> output(bytes), both = input;
      require(ncclReduce(input.data(), output.data(), count, nccl_type, op, root, comm, nullptr),
              "a reduce out of place");
      require(ncclReduce(both.data(), both.data(), count, nccl_type, op, root, comm, nullptr),
              "a reduce in place");
      const std::string which = fmt::format("operation {} of {} elements of type {} to root {}",
                                            static_cast<int>(op), count, nccl_type, root);
      require(output == (rank == root ? sum : std::vector<std::byte>(bytes)), which);
      require(both == (rank == root ? sum : input), which + ", in place");
    }
  }
}

}  // namespace

TEST_CASE("a short reduce of two CPU ranks has the bits of an all-reduce", "[req:5.22]") {
  const std::uint64_t seed = test_seed();
  check_all_ok(run_ranks(LaunchMode::processes, 2, [seed](TestRanks& test_ranks) {
    auto comms = test_ranks.init();
    for (int type = 0; type < ncclNumTypes; ++type) {
      for (const std::size_t count : {1, 7, 37, 513, 4096, 4097}) {
        compare_reduces(comms[0], test_ranks.first(), count, static_cast<DataType>(type), seed);
      }
    }
    test_ranks.destroy(comms);
  }));
}

TEST_CASE("a rank's short reduces end before their root has come, the root gets them in order",
          "[req:5.22]") {
  const Environment bounded(Variables{{"ORIEL_COLLECTIVE_TIMEOUT", "60s"}});
  check_all_ok(run_ranks(LaunchMode::processes, 2, [](TestRanks& test_ranks) {
    auto comms = test_ranks.init();
    const bool is_root = test_ranks.first() == 0;
    for (const std::size_t count : {1, 1024}) {
      if (is_root) test_ranks.barrier();
      for (int call = 1; call <= 3; ++call) {
        std::vector<float> data(count, static_cast<float>(is_root ? 10 * call : call));
        require(
            ncclReduce(data.data(), data.data(), count, ncclFloat, ncclSum, 0, comms[0], nullptr),
            "ncclReduce");
        const float sum = static_cast<float>(is_root ? 11 * call : call);
        require(data == std::vector<float>(count, sum), fmt::format("call {}", call));
      }
      if (!is_root) test_ranks.barrier();
    }
    test_ranks.destroy(comms);
  }));
}

TEST_CASE("short reduces of one group to different roots are right", "[req:5.2][req:5.22]") {
  check_all_ok(run_ranks(LaunchMode::processes, 2, [](TestRanks& test_ranks) {
    auto comms = test_ranks.init();
    const int me = test_ranks.first();
    for (const std::size_t count : {1, 1024}) {
      std::vector<std::vector<float>> data;
      require(ncclGroupStart(), "ncclGroupStart");
      for (int call = 0; call < 6; ++call) {
        auto& one = data.emplace_back(count, static_cast<float>(10 * call + me));
        require(ncclReduce(one.data(), one.data(), count, ncclFloat, ncclSum, call % 2, comms[0],
                           nullptr),
                "ncclReduce");
      }
      require(ncclGroupEnd(), "ncclGroupEnd");
      for (int call = 0; call < 6; ++call) {
        const float value = static_cast<float>(call % 2 == me ? 20 * call + 1 : 10 * call + me);
        require(data[static_cast<std::size_t>(call)] == std::vector<float>(count, value),
                fmt::format("call {} of {} elements", call, count));
      }
    }
    test_ranks.destroy(comms);
  }));
}

TEST_CASE("ranks that differ in a short reduce get an error that says so", "[req:5.22][req:1.38]") {
  const Environment bounded(Variables{{"ORIEL_COLLECTIVE_TIMEOUT", "20s"}});
  // Reduces of 2,000 elements are no exchanges.
  const auto wrong =
      GENERATE(std::pair(ncclMax, 2), std::pair(ncclSum, 3), std::pair(ncclSum, 2000));
  check_all_ok(run_ranks(LaunchMode::processes, 2, [wrong](TestRanks& test_ranks) {
    auto comms = test_ranks.init();
    std::vector<float> data(2000);
    const auto [op, elements] = test_ranks.first() == 1 ? wrong : std::pair(ncclSum, 2);
    const auto count = static_cast<std::size_t>(elements);
    const ncclResult_t done =
        ncclReduce(data.data(), data.data(), count, ncclFloat, op, 0, comms[0], nullptr);
    const ncclResult_t result = done == ncclSuccess ? await_failure(comms[0]) : done;
    require(result == ncclInvalidUsage || result == ncclRemoteError, "it failed");
    require_words(ncclGetLastError(comms[0]), {"are in different calls"});
    test_ranks.barrier();
    test_ranks.destroy(comms);
  }));
}

namespace {

/// Broadcasts from each rank in turn, and checks the received data.
void broadcast_from_all(TestRanks& test_ranks) {
  auto comms = test_ranks.init();
  std::vector<std::uint64_t> data(400'001), sent(data.size());
  for (int root = 0; root < test_ranks.size(); ++root) {
    for (std::size_t i = 0; i < sent.size(); ++i) {
      sent[i] = static_cast<std::uint64_t>(root) << 32 | i;
    }
    data = test_ranks.first() == root ? sent : std::vector<std::uint64_t>(sent.size());
    require(ncclBcast(data.data(), data.size(), ncclUint64, root, comms[0], nullptr), "ncclBcast");
    require(data == sent, fmt::format("what root {} has sent", root));
  }
  test_ranks.destroy(comms);
}

/// Distributes blocks of several parts to all ranks, and checks the received data.
void exchange_blocks(TestRanks& test_ranks) {
  auto comms = test_ranks.init();
  constexpr std::size_t kBlock = 100'003;
  const auto element = [](std::size_t rank, std::size_t i) { return rank << 32 | i; };
  const auto me = static_cast<std::size_t>(test_ranks.first());
  const std::size_t all = kBlock * static_cast<std::size_t>(test_ranks.size());
  std::vector<std::uint64_t> sent(all), received(all);
  for (std::size_t i = 0; i < all; ++i) sent[i] = element(me, i);
  require(ncclAllGather(sent.data(), received.data(), kBlock, ncclUint64, comms[0], nullptr),
          "ncclAllGather");
  for (std::size_t i = 0; i < all; ++i) {
    require(received[i] == element(i / kBlock, i % kBlock), fmt::format("gathered {}", i));
  }
  require(ncclAlltoAll(sent.data(), received.data(), kBlock, ncclUint64, comms[0], nullptr),
          "ncclAlltoAll");
  for (std::size_t i = 0; i < all; ++i) {
    require(received[i] == element(i / kBlock, me * kBlock + i % kBlock),
            fmt::format("received {}", i));
  }
  test_ranks.destroy(comms);
}

}  // namespace

TEST_CASE("a broadcast of several parts reaches every rank of every node, from any root",
          "[req:5.11][req:5.8]") {
  check_all_ok(run_ranks(LaunchMode::processes, 5,
                         [](TestRanks& test_ranks) {  // nodes have 2, 2 and 1 ranks
                           const Environment own(of_node(test_ranks.first() / 2));
                           broadcast_from_all(test_ranks);
                         }));
}

namespace {

std::atomic<int> reads_of_peers;  // reads of other processes by this process
std::atomic<bool> may_read_peers;

ssize_t count_read(pid_t pid, const iovec* here, unsigned long here_count, const iovec* there,
                   unsigned long there_count, unsigned long flags) {
  const bool is_own = pid == ::getpid();  // a sender tests whether its own memory is readable
  if (!is_own) ++reads_of_peers;
  if (is_own || may_read_peers) {
    return ::process_vm_readv(pid, here, here_count, there, there_count, flags);
  }
  errno = EPERM;
  return -1;
}

/// Broadcasts buffers outside windows, after each rank has tested whether it may read its peers'
/// memory.
void exchange_outside_windows(TestRanks& test_ranks, bool may_read) {
  SystemTable table = real_system_table();
  table.process_vm_readv = count_read;
  may_read_peers = may_read;
  const ScopedSystemTable scoped(table);
  broadcast_from_all(test_ranks);
  const int tries = test_ranks.size() - 1;  // one test read per peer at the start
  require(reads_of_peers >= tries, "each rank tries to read each other one");
  // Each rank receives one broadcast from each peer, in 4 pieces of at most 1 MiB.
  require(reads_of_peers == (may_read ? tries + 4 * tries : tries),
          fmt::format("{} reads", reads_of_peers.load()));
}

/// Returns true if ranks may read each other's memory; Yama may forbid it.
bool may_read_siblings() {
  std::ifstream setting("/proc/sys/kernel/yama/ptrace_scope");
  int scope = 0;
  return !(setting >> scope) || scope == 0 || ::geteuid() == 0;
}

}  // namespace

TEST_CASE("long messages outside windows are read where they are, if ranks may, with one copy",
          "[req:5.9]") {
  const bool may_read = GENERATE(true, false) && may_read_siblings();
  check_all_ok(run_ranks(LaunchMode::processes, 3, [=](TestRanks& test_ranks) {
    // If `may_read` is false, only rank 1 may not read, so that pairs differ. Yama may forbid all.
    exchange_outside_windows(test_ranks,
                             may_read || (may_read_siblings() && test_ranks.first() != 1));
  }));
  check_all_ok(run_ranks(LaunchMode::threads, 3, broadcast_from_all));
}

TEST_CASE("with ORIEL_ALGORITHM=stream broadcasts and exchanges of CPU ranks are right",
          "[req:5.9]") {
  const int ranks = GENERATE(2, 3);
  const Environment forced(Variables{{"ORIEL_ALGORITHM", "stream"}});
  check_all_ok(run_ranks(LaunchMode::processes, ranks, broadcast_from_all));
  check_all_ok(run_ranks(LaunchMode::processes, ranks, exchange_blocks));
}

}  // namespace oriel::test
