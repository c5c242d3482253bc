// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <catch2/catch.hpp>
#include <fmt/format.h>

#include "nccl.h"

#include "comm/communicator/random_all_reduces.hpp"
#include "comm/support/in_teams.hpp"
#include "comm/support/stall_log.hpp"
#include "support/process_state.hpp"
#include "support/ranks.hpp"
#include "support/sanitized.hpp"
#include "support/seed.hpp"

/// Sends and receives through the C interface, alone, in groups and beside collectives.
namespace oriel::test {
namespace {

using namespace std::chrono_literals;

/// A message that both ends know. Those between two ranks arrive in the order of the list.
struct PlannedMessage {
  int from = 0;
  int to = 0;
  std::size_t bytes = 0;
  std::uint64_t seed = 0;
};

std::byte byte_of(const PlannedMessage& message, std::size_t index) {
  return static_cast<std::byte>(mix(message.seed, index / 8) >> (index % 8 * 8));
}

enum class Pattern { ring, all_pairs, several_per_pair, at_random, many_small };
constexpr int kPatterns = 5;

/// The messages of one group.
std::vector<PlannedMessage> draw_messages(int size, std::uint64_t seed) {
  std::mt19937_64 rng(seed);
  std::vector<PlannedMessage> messages;
  const auto add = [&](int from, int to, std::size_t bytes) {
    messages.push_back({from, to, bytes, rng()});
  };
  const auto any_size = [&]() -> std::size_t {
    constexpr std::size_t kSizes[] = {0, 1, 7, 1'000, 65'536, 65'537, 20'001};
    return rng() % 12 == 0 ? 700'001 : kSizes[rng() % 7];
  };
  const auto ranks = static_cast<std::uint64_t>(size);
  const auto pattern = static_cast<Pattern>(rng() % kPatterns);
  if (pattern == Pattern::ring) {
    const std::size_t bytes = any_size();
    for (int rank = 0; rank < size; ++rank) add(rank, (rank + 1) % size, bytes);
    return messages;
  }
  if (pattern == Pattern::at_random) {
    for (int i = 0; i < 20; ++i) {
      add(static_cast<int>(rng() % ranks), static_cast<int>(rng() % ranks), any_size());
    }
    return messages;
  }
  // More than one launch carries, if there are several ranks.
  const int repeats_of_pair = pattern == Pattern::all_pairs    ? 1
                              : pattern == Pattern::many_small ? 80
                                                               : 4;
  for (int from = 0; from < size; ++from) {
    for (int to = 0; to < size; ++to) {
      for (int i = 0; i < repeats_of_pair; ++i) {
        add(from, to, pattern == Pattern::many_small ? rng() % 100 : any_size());
      }
    }
  }
  return messages;
}

/// A send or receive that a rank is to call.
struct PlannedCall {
  const PlannedMessage* message;
  bool is_send;
  std::vector<std::byte> data;
};

/// The calls of `rank`: those with one peer and direction in the order of the list, else shuffled.
std::vector<PlannedCall> calls_of(const std::vector<PlannedMessage>& messages, int rank,
                                  std::uint64_t seed) {
  std::vector<PlannedCall> calls;
  for (const PlannedMessage& message : messages) {
    if (message.from == rank) {
      PlannedCall call{&message, true, std::vector<std::byte>(message.bytes)};
      for (std::size_t i = 0; i < message.bytes; ++i) call.data[i] = byte_of(message, i);
      calls.push_back(std::move(call));
    }
    if (message.to == rank) {
      calls.push_back({&message, false, std::vector<std::byte>(message.bytes, std::byte{0x5a})});
    }
  }
  // Draws the stream of the next call; the calls of a stream keep their order.
  const auto stream_of = [](const PlannedCall& call) {
    return std::pair(call.is_send, call.is_send ? call.message->to : call.message->from);
  };
  std::vector<std::size_t> places(calls.size());
  for (std::size_t i = 0; i < places.size(); ++i) places[i] = i;
  std::mt19937_64 rng(seed + static_cast<std::uint64_t>(rank));
  std::vector<std::size_t> order = places;
  std::shuffle(order.begin(), order.end(), rng);
  std::vector<PlannedCall> shuffled;
  std::vector<bool> taken(calls.size());
  for (const std::size_t drawn : order) {
    std::size_t next = 0;
    while (taken[next] || stream_of(calls[next]) != stream_of(calls[drawn])) ++next;
    taken[next] = true;
    shuffled.push_back(calls[next]);
  }
  return shuffled;
}

void check_received(const std::vector<PlannedCall>& calls, std::uint64_t seed) {
  for (const PlannedCall& call : calls) {
    for (std::size_t i = 0; i < call.data.size(); ++i) {
      if (call.data[i] == byte_of(*call.message, i)) continue;
      throw std::runtime_error(fmt::format("byte {} of {} from rank {} to {} is wrong, seed {:#x}",
                                           i, call.message->bytes, call.message->from,
                                           call.message->to, seed));
    }
  }
}

ncclResult_t issue(PlannedCall& call, ncclComm_t comm) {
  return call.is_send ? ncclSend(call.data.data(), call.data.size(), ncclUint8, call.message->to,
                                 comm, nullptr)
                      : pncclRecv(call.data.data(), call.data.size(), ncclUint8, call.message->from,
                                  comm, nullptr);
}

/// One group of random messages, in every second with collectives between the calls.
void run_random_group(Players& players, std::vector<ncclComm_t>& comms, std::uint64_t seed) {
  const auto messages = draw_messages(players.size(), seed);
  const bool with_collectives = mix(seed, 5) % 2 == 0;
  std::vector<std::vector<PlannedCall>> calls;
  std::vector<float> sums(comms.size(), 1), roots(comms.size());
  for (std::size_t i = 0; i < comms.size(); ++i) {
    calls.push_back(calls_of(messages, players.ranks()[i], seed));
    roots[i] = players.ranks()[i] == 0 ? 8.0f : 0.0f;
  }
  const auto issue_collectives = [&](std::size_t i) {
    require(ncclAllReduce(&sums[i], &sums[i], 1, ncclFloat, ncclSum, comms[i], nullptr), "sum");
    require(ncclBcast(&roots[i], 1, ncclFloat, 0, comms[i], nullptr), "broadcast");
  };
  require(ncclGroupStart(), "ncclGroupStart");
  for (std::size_t i = 0; i < comms.size(); ++i) {
    for (std::size_t k = 0; k <= calls[i].size(); ++k) {
      if (with_collectives && k == calls[i].size() / 2) issue_collectives(i);
      if (k < calls[i].size()) require(issue(calls[i][k], comms[i]), "a call of the group");
    }
  }
  require(ncclGroupEnd(), "ncclGroupEnd");
  for (std::size_t i = 0; i < comms.size(); ++i) {
    check_received(calls[i], seed);
    if (!with_collectives) continue;
    require(sums[i] == static_cast<float>(players.size()) && roots[i] == 8.0f, "the collectives");
  }
}

}  // namespace

TEST_CASE("random groups of sends, receives and collectives deliver every byte", "[req:5.10]") {
  const std::uint64_t seed = test_seed();
  const int ranks = GENERATE(2, 3, 4, 8);
  for (const Cast cast : kCasts) {
    INFO(ranks << " ranks as " << name_of(cast));
    check_all_ok(play(
        cast, ranks,
        [&](Players& players) {
          auto comms = players.init();
          const int groups = scaled(repeats(30, 10));
          for (int i = 0; i < groups; ++i) {
            run_random_group(players, comms,
                             mix(seed, static_cast<std::uint64_t>(ranks * 1000 + i)));
          }
          players.destroy(comms);
        },
        120s));
  }
}

TEST_CASE("random groups of ranks of several nodes deliver every byte", "[req:5.11][req:5.10]") {
  const std::uint64_t seed = test_seed();
  const auto [ranks, of_a_node] =
      GENERATE(std::pair(2, 1), std::pair(4, 2), std::pair(5, 2), std::pair(8, 3));
  INFO(ranks << " ranks, " << of_a_node << " of a node");
  check_all_ok(play(
      Cast::processes, ranks,
      [&, ranks = ranks, of_a_node = of_a_node](Players& players) {
        const Environment own(of_node(players.first() / of_a_node));
        auto comms = players.init();
        const int groups = scaled(repeats(20, 4));
        for (int i = 0; i < groups; ++i) {
          run_random_group(players, comms, mix(seed, static_cast<std::uint64_t>(ranks * 999 + i)));
        }
        players.destroy(comms);
      },
      120s));
}

TEST_CASE("a send between two nodes needs no word of a third rank", "[req:5.11]") {
  check_all_ok(play(Cast::processes, 3, [](Players& players) {
    const Environment own(of_node(players.first()));
    auto comms = players.init();
    int value = 7 * players.first();
    if (players.first() == 0) require(ncclRecv(&value, 1, ncclInt, 1, comms[0], nullptr), "recv");
    if (players.first() == 1) require(ncclSend(&value, 1, ncclInt, 0, comms[0], nullptr), "send");
    require(value == (players.first() == 2 ? 14 : 7), "what was received");
    players.barrier();  // the third has called nothing
    players.destroy(comms);
  }));
}

TEST_CASE("a rank alone sends to itself in a group, the data arrive", "[req:5.10]") {
  check_all_ok(play(Cast::processes, 1, [](Players& players) {
    auto comms = players.init();
    int sent[3] = {1, 2, 3}, received[3] = {};
    require(ncclGroupStart(), "ncclGroupStart");
    for (int i = 0; i < 3; ++i) {
      require(ncclRecv(&received[i], 1, ncclInt, 0, comms[0], nullptr), "ncclRecv");
      require(ncclSend(&sent[i], 1, ncclInt, 0, comms[0], nullptr), "ncclSend");
    }
    require(ncclGroupEnd(), "ncclGroupEnd");
    require(std::equal(sent, sent + 3, received), "what was received");
    players.destroy(comms);
  }));
}

TEST_CASE("sends outside a group that fit into a channel end before their receives, in order",
          "[req:5.10]") {
  check_all_ok(play(Cast::processes, 2, [](Players& players) {
    auto comms = players.init();
    const int other = 1 - players.first();
    int theirs[4] = {};
    for (int i = 0; i < 4; ++i) {
      const int value = 10 * players.first() + i;
      require(ncclSend(&value, 1, ncclInt, other, comms[0], nullptr), "ncclSend");
    }
    players.barrier();  // both have sent, and none has received
    for (int i = 0; i < 4; ++i) {
      require(ncclRecv(&theirs[i], 1, ncclInt, other, comms[0], nullptr), "ncclRecv");
      require(theirs[i] == 10 * other + i, "in the order of the calls");
    }
    players.destroy(comms);
  }));
}

TEST_CASE("one group of two communicators delivers on both", "[req:5.10]") {
  check_all_ok(play(Cast::processes, 2, [](Players& players) {
    auto first = players.init();
    auto second = players.init();
    const int other = 1 - players.first();
    const std::size_t count = 300'000;
    std::vector<int> sent(count, 100 + players.first()), received[2];
    for (auto& one : received) one.assign(count, 0);
    require(ncclGroupStart(), "ncclGroupStart");
    // The ranks name the communicators in different orders, which is legal.
    for (const int i : {players.first(), other}) {
      ncclComm_t comm = i == 0 ? first[0] : second[0];
      require(ncclSend(sent.data(), count, ncclInt, other, comm, nullptr), "ncclSend");
      require(ncclRecv(received[i].data(), count, ncclInt, other, comm, nullptr), "ncclRecv");
    }
    require(ncclGroupEnd(), "ncclGroupEnd");
    for (const auto& one : received) {
      require(std::count(one.begin(), one.end(), 100 + other) == static_cast<long>(count),
              "what was received");
    }
    players.destroy(first);
    players.destroy(second);
  }));
}

TEST_CASE("a wrong argument of a send or receive is refused by name, nothing of the group is begun",
          "[req:5.10]") {
  check_all_ok(play(Cast::processes, 2, [](Players& players) {
    auto comms = players.init();
    ncclComm_t comm = comms[0];
    float data[4] = {1, 2, 3, 4};
    if (players.first() == 0) {
      const auto refused = [](ncclResult_t result, const std::vector<std::string>& words) {
        expect_error(result, ncclInvalidArgument, "a wrong call", words);
      };
      refused(ncclSend(data, 1, ncclFloat, 2, comm, nullptr),
              {"a send", "peer is 2, but ranks go from 0 to 1"});
      refused(ncclRecv(data, 1, ncclFloat, -1, comm, nullptr), {"a receive", "peer is -1"});
      refused(ncclSend(nullptr, 1, ncclFloat, 1, comm, nullptr), {"sendbuff is null"});
      refused(ncclRecv(nullptr, 1, ncclFloat, 1, comm, nullptr), {"recvbuff is null"});
      refused(ncclSend(data, SIZE_MAX / 16, ncclFloat, 1, comm, nullptr), {"larger than memory"});
      refused(ncclSend(data, 1, ncclNumTypes, 1, comm, nullptr), {"datatype is 12"});
      refused(ncclSend(data, 1, ncclFloat, 1, comm, reinterpret_cast<cudaStream_t>(data)),
              {"the stream is not null"});
      expect_error(ncclSend(data, 1, ncclFloat, 0, comm, nullptr), ncclInvalidUsage,
                   "a send to itself", {"sends 1 messages to itself and receives 0"});
      // A refused call cancels its group, which has sent nothing.
      require(ncclGroupStart(), "ncclGroupStart");
      require(ncclSend(data, 1, ncclFloat, 1, comm, nullptr), "a right call");
      refused(ncclSend(data, 1, ncclFloat, 7, comm, nullptr), {"peer is 7"});
      expect_error(ncclGroupEnd(), ncclInvalidArgument, "the group", {"peer is 7"});
      // So does a send to itself without its receive, which only the end of the group can tell.
      require(ncclGroupStart(), "ncclGroupStart");
      require(ncclSend(data, 1, ncclFloat, 1, comm, nullptr), "a right call");
      require(ncclSend(data, 1, ncclFloat, 0, comm, nullptr), "a send to itself");
      expect_error(ncclGroupEnd(), ncclInvalidUsage, "the group", {"to itself"});
    }
    players.barrier();
    if (players.first() == 0) {
      require(ncclSend(data + 3, 1, ncclFloat, 1, comm, nullptr), "ncclSend");
    } else {
      require(ncclRecv(data, 1, ncclFloat, 0, comm, nullptr), "ncclRecv");
      require(data[0] == 4, "only what was sent at last");
    }
    require(ncclSend(nullptr, 0, ncclFloat, 1 - players.first(), comm, nullptr), "no elements");
    players.destroy(comms);
  }));
}

TEST_CASE("a failed query inside a group does not cancel it, a refused collective does",
          "[req:5.10]") {
  check_all_ok(play(Cast::processes, 2, [](Players& players) {
    auto comms = players.init();
    float value = 1;
    require(ncclGroupStart(), "ncclGroupStart");
    require(ncclAllReduce(&value, &value, 1, ncclFloat, ncclSum, comms[0], nullptr), "all-reduce");
    expect_error(ncclCommCount(comms[0], nullptr), ncclInvalidArgument, "a query",
                 {"count is null"});
    expect_error(ncclCommUserRank(nullptr, nullptr), ncclInvalidArgument, "a query", {});
    expect_error(ncclMemFree(&value), ncclInvalidArgument, "ncclMemFree", {});
    require(ncclGroupEnd(), "the group");
    require(value == 2, "the sum");
    require(ncclGroupStart(), "ncclGroupStart");
    require(ncclAllReduce(&value, &value, 1, ncclFloat, ncclSum, comms[0], nullptr), "all-reduce");
    expect_error(ncclAllReduce(nullptr, &value, 1, ncclFloat, ncclSum, comms[0], nullptr),
                 ncclInvalidArgument, "a refused call", {"sendbuff is null"});
    expect_error(ncclGroupEnd(), ncclInvalidArgument, "the group", {"sendbuff is null"});
    require(value == 2, "nothing was added");
    players.destroy(comms);
  }));
}

TEST_CASE("a send and a receive of different sizes get an error that names both ranks",
          "[req:5.10]") {
  check_all_ok(play(Cast::processes, 2, [](Players& players) {
    auto comms = players.init();
    std::vector<float> data(1000);
    ncclResult_t done = ncclSuccess;
    if (players.first() == 0) {
      done = ncclSend(data.data(), 1000, ncclFloat, 1, comms[0], nullptr);
      if (done == ncclSuccess) done = await_failure(comms[0]);
    } else {
      done = ncclRecv(data.data(), 999, ncclFloat, 0, comms[0], nullptr);
    }
    require(done != ncclSuccess, "it failed");
    require_words(ncclGetLastError(comms[0]), {"ranks 1 and 0 are in different calls"});
    players.barrier();
    players.destroy(comms);
  }));
}

namespace {

constexpr std::size_t kIsWaiting = 0, kMayGoOn = 1;  // words of the board

/// Rank 0 waits for rank 2 in a group, until that comes.
void be_late_with_a_send(Players& players) {
  auto comms = players.init();
  float data[3] = {1, 2, 3}, received[3] = {};
  players.barrier();
  if (players.first() == 0) players.word(kIsWaiting) = 1;
  if (players.first() == 2) players.await(kMayGoOn);
  require(ncclGroupStart(), "ncclGroupStart");
  if (players.first() == 0) {
    require(ncclSend(data, 3, ncclFloat, 1, comms[0], nullptr), "ncclSend");
    require(ncclSend(data, 3, ncclFloat, 2, comms[0], nullptr), "ncclSend");
    require(ncclRecv(received, 3, ncclFloat, 2, comms[0], nullptr), "ncclRecv");
  } else {
    require(ncclRecv(received, 3, ncclFloat, 0, comms[0], nullptr), "ncclRecv");
    if (players.first() == 2) {
      require(ncclSend(data, 3, ncclFloat, 0, comms[0], nullptr), "ncclSend");
    }
  }
  require(ncclGroupEnd(), "ncclGroupEnd");
  require(received[2] == 3, "what was received");
  players.destroy(comms);
}

}  // namespace

TEST_CASE("a receive that waits long says so, with the group and the peer", "[req:5.10][D7]") {
  const StallLog log;
  Stage stage(Cast::processes, 3, be_late_with_a_send);
  REQUIRE(stage.wait_for_word(kIsWaiting, 1, 30s));
  const pid_t pid = stage.pid(0);
  CHECK(eventually([&] { return !log.lines(pid).empty(); }));
  const auto lines = log.lines(pid);
  CHECK(log.lines(stage.pid(1)).empty());
  stage.board().words[kMayGoOn] = 1;
  check_all_ok(stage.collect(30s));
  REQUIRE(!lines.empty());
  CAPTURE(lines.front());
  CHECK_NOTHROW(require_words(
      lines.front(), {"stalled: rank 0", "in a group of 2 sends and 1 receives for rank 2 ("}));
}

TEST_CASE("an abort ends a send and a receive that wait, on both ranks",
          "[req:5.10][req:5.11][req:1.12]") {
  const bool sends = GENERATE(true, false);
  const int nodes = GENERATE(1, 2);
  INFO((sends ? "a send" : "a receive") << ", " << nodes << " nodes");
  check_all_ok(play(Cast::processes, 2, [&](Players& players) {
    const Environment own(of_node(players.first() % nodes));
    auto comms = players.init();
    std::vector<float> data(4'000'000);  // more than a channel holds
    if (players.first() == 0) {
      std::thread thread([&] {
        std::this_thread::sleep_for(300ms);
        require(ncclCommAbort(comms[0]), "ncclCommAbort");
      });
      const ncclResult_t done =
          sends ? ncclSend(data.data(), data.size(), ncclFloat, 1, comms[0], nullptr)
                : ncclRecv(data.data(), data.size(), ncclFloat, 1, comms[0], nullptr);
      thread.join();
      expect_error(done, ncclInvalidUsage, "the call", {"ncclCommAbort was called"});
    } else {
      require(await_failure(comms[0]) == ncclRemoteError, "the other rank's abort");
      players.destroy(comms);
    }
  }));
}

TEST_CASE("a peer that dies ends a receive that waits for it, with an error that names it",
          "[req:5.10][req:5.11][req:1.12]") {
  const int nodes = GENERATE(1, 2);
  Stage stage(Cast::processes, 2, [nodes](Players& players) {
    const Environment own(of_node(players.first() % nodes));
    auto comms = players.init();
    float data[4] = {};
    players.barrier();
    if (players.first() == 1) {
      players.word(kIsWaiting) = 1;
      players.await(kMayGoOn);  // which never comes
    }
    const ncclResult_t done = ncclRecv(data, 4, ncclFloat, 1, comms[0], nullptr);
    require(done == ncclRemoteError || done == ncclSystemError, "it failed");
    require_words(ncclGetLastError(comms[0]), {"rank 1"});
    players.destroy(comms);
  });
  REQUIRE(stage.wait_for_word(kIsWaiting, 1, 30s));
  std::this_thread::sleep_for(200ms);
  stage.kill(1, SIGKILL);
  const auto verdicts = stage.collect(30s);
  CHECK(verdicts[0] == "ok");
}

}  // namespace oriel::test
