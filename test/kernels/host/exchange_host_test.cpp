// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <functional>
#include <numeric>
#include <random>
#include <span>
#include <thread>
#include <vector>

#include <catch2/catch.hpp>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/system_table.hpp"
#include "kernels/host/exchange_team.hpp"
#include "kernels/plan/exchange.hpp"
#include "kernels/plan/planned_launches.hpp"
#include "support/sanitized.hpp"
#include "support/seed.hpp"

/// Tests exchanges among CPU ranks that are threads over the test's own memory.
namespace {

using namespace oriel;
using namespace oriel::kernels;

using Bytes = std::vector<std::byte>;
using Reach = PeerProcess::Reach;
using test::BlockCase;
using test::expected;
using test::gets;
using test::Team;
using test::value;
constexpr Reach kReaches[] = {Reach::none, Reach::own_process, Reach::other_process};

Bytes pattern(std::uint64_t seed, std::size_t bytes) {
  std::mt19937_64 random(seed);
  Bytes made(bytes);
  for (auto& byte : made) byte = static_cast<std::byte>(random());
  return made;
}

/// One message of a group of sends and receives.
struct Letter {
  int from;
  int to;
  std::uint64_t seed;
  Bytes sent;
  Bytes received;
};

std::vector<Letter> random_letters(int ranks, std::mt19937_64& random) {
  const std::size_t sizes[] = {0, 1, 3, 64, 127, 128, 1000, 4096, 70'001};
  const std::size_t sizes_used = random() % 2 == 0 ? 6 : std::size(sizes);  // 6: all are short
  std::vector<Letter> letters(random() % 40);
  for (Letter& letter : letters) {
    letter.from = static_cast<int>(random() % static_cast<unsigned>(ranks));
    letter.to = static_cast<int>(random() % static_cast<unsigned>(ranks));
    letter.seed = random();
    letter.sent = pattern(letter.seed, sizes[random() % sizes_used]);
    letter.received = Bytes(letter.sent.size(), std::byte{0xee});
  }
  return letters;
}

/// Returns the calls of one rank: sends in order and receives in order, randomly interleaved.
std::vector<PointToPoint> calls_of(std::vector<Letter>& letters, int rank,
                                   std::mt19937_64& random) {
  std::vector<PointToPoint> sends;
  std::vector<PointToPoint> receives;
  for (Letter& letter : letters) {
    if (letter.from == rank) {
      sends.push_back({true, letter.sent.data(), letter.sent.size(), letter.to});
    }
    if (letter.to == rank) {
      receives.push_back({false, letter.received.data(), letter.received.size(), letter.from});
    }
  }
  std::vector<PointToPoint> calls;
  for (auto s = sends.begin(), r = receives.begin(); s != sends.end() || r != receives.end();) {
    const bool send = r == receives.end() || (s != sends.end() && random() % 2 == 0);
    calls.push_back(send ? *s++ : *r++);
  }
  return calls;
}

}  // namespace

TEST_CASE("random groups of sends and receives, cut at random, deliver every byte",
          "[req:5.3][req:5.10]") {
  const std::uint64_t seed = test::test_seed();
  std::mt19937_64 random(seed);
  for (int turn = 0; turn < test::repeats(40, 8); ++turn) {
    const int ranks = 2 + static_cast<int>(random() % 7);
    Team team(ranks, random() % 2 == 0 ? 1 << 20 : 1 << 13, kReaches[random() % 3]);
    for (int group = 0; group < 6; ++group) {
      auto letters = random_letters(ranks, random);
      const std::uint64_t drawn = random();
      const int good = team.on_ranks([&](int rank) {
        std::mt19937_64 own(drawn + static_cast<unsigned>(rank));
        const auto exchange = test::exchange_of(calls_of(letters, rank, own), rank);
        if (!exchange.ok()) return false;
        // Cuts the launches at a random number of messages on each rank.
        const int most = 1 + static_cast<int>(own() % 20);
        const ExchangeFacts facts = team.facts(rank, most);
        Exchange rest = exchange.value();
        if (is_short(rest, facts) && own() % 4 != 0 && run_short_exchange_on_host(rest, facts)) {
          return true;
        }
        return Team::run(test::launches_of(rest, facts), own);
      });
      REQUIRE(good == ranks);
      for (const Letter& letter : letters) REQUIRE(letter.received == letter.sent);
    }
  }
}

namespace {

/// Runs the case on one rank; returns whether the receive buffer holds the expected elements.
bool run_case(Team& team, const BlockCase& one, int rank, std::uint64_t seed) {
  const auto ranks = static_cast<std::uint64_t>(team.ranks());
  const std::uint64_t sent = sends_blocks(one.collective) ? ranks * one.count : one.count;
  const std::uint64_t got = receives_blocks(one.collective) ? ranks * one.count : one.count;
  // Peers may write long messages directly into buffers in this rank's slot. Other buffers use the
  // channels' slots, or receivers read the sender's memory if the team's reach allows it.
  std::vector<std::uint32_t> input_memory(std::max(sent, got));
  std::vector<std::uint32_t> output_memory(got, 0xdeadbeef);
  const std::span<std::uint32_t> buffer = team.buffer(rank);
  const bool is_near = (one.count + static_cast<std::uint64_t>(rank)) % 3 != 0;
  if (buffer.size() < input_memory.size() + got) return false;
  std::uint32_t* const input = one.in_place && is_near ? buffer.data() : input_memory.data();
  std::uint32_t* const output =
      is_near ? buffer.data() + input_memory.size() : output_memory.data();
  std::fill_n(output, got, 0xdeadbeef);
  const std::uint64_t own = static_cast<std::uint64_t>(rank) * one.count;
  std::uint32_t* from = input;
  std::uint32_t* to = output;
  if (one.in_place) {
    if (receives_blocks(one.collective)) from = input + own;
    to = sends_blocks(one.collective) ? input + own : input;
  }
  for (std::uint64_t i = 0; i < sent; ++i) from[i] = value(rank, i);
  RankCollective call;
  call.collective = one.collective;
  call.rank = rank;
  call.ranks = team.ranks();
  call.root = one.root;
  call.input = reinterpret_cast<const std::byte*>(from);
  call.output = reinterpret_cast<std::byte*>(to);
  call.count = one.count;
  call.type = DataType::u32;
  std::mt19937_64 random(seed + static_cast<unsigned>(rank));
  if (!Team::run(test::launches_of(test::exchange_of(call), team.facts(rank)), random))
    return false;
  for (std::uint64_t i = 0; gets(one, rank) && i < got; ++i) {
    if (to[i] != expected(one, rank, i)) return false;
  }
  return true;
}

}  // namespace

TEST_CASE("collectives as exchanges give every rank what they are defined to give",
          "[req:5.8][req:5.9]") {
  const std::uint64_t seed = test::test_seed();
  for (const int ranks : {1, 2, 3, 5, 8}) {
    Team team(ranks, 1 << 14, ranks % 2 == 0 ? Reach::own_process : Reach::none);
    for (int kind = 1; kind < kCollectiveCount; ++kind) {
      const auto collective = static_cast<Collective>(kind);
      if (reduces(collective)) continue;
      for (const std::uint64_t count : {1, 31, 700, 5000}) {
        for (const bool in_place : {false, true}) {
          if (in_place && collective == Collective::all_to_all) continue;
          const int root = has_root(collective) ? static_cast<int>(count) % ranks : 0;
          const BlockCase one{collective, root, count, in_place};
          CAPTURE(ranks, name_of(collective), count, in_place);
          REQUIRE(team.on_ranks([&](int rank) { return run_case(team, one, rank, seed); }) ==
                  ranks);
        }
      }
    }
  }
}

TEST_CASE("a receive of another size than its send fails and names the sender, nothing hangs",
          "[req:5.3]") {
  Team team(2, 1 << 14);
  Bytes data(4000);
  const int good = team.on_ranks([&](int rank) {
    std::mt19937_64 random(1);
    const std::vector<PointToPoint> calls = {
        {rank == 0, data.data(), rank == 0 ? 4000u : 3000u, 1 - rank}};
    return Team::run(test::launches_of(test::exchange_of(calls, rank).value(), team.facts(rank)),
                     random);
  });
  CHECK(good == 1);  // the sender has already left the call
  CHECK(team.failure(1).kind == static_cast<std::uint32_t>(FailureKind::world_signature));
  CHECK(team.failure(1).rank == 0);
}

TEST_CASE("a rendezvous read that fails ends the receive and names the sender", "[req:5.9]") {
  SystemTable table = real_system_table();
  table.process_vm_readv = [](pid_t pid, const iovec* here, unsigned long here_count,
                              const iovec* there, unsigned long there_count,
                              unsigned long flags) -> ssize_t {
    if (here->iov_len == 1) {  // the sender's test read of its own memory
      return ::process_vm_readv(pid, here, here_count, there, there_count, flags);
    }
    errno = EFAULT;
    return -1;
  };
  const ScopedSystemTable scoped(table);
  Team team(2, 1 << 14, Reach::other_process);
  std::vector<Bytes> data(2, Bytes(70'001));
  std::uint32_t abort = 0;
  const int good = team.on_ranks([&](int rank) {
    std::mt19937_64 random(1);
    const std::vector<PointToPoint> calls = {
        {rank == 0, data[static_cast<std::size_t>(rank)].data(), 70'001, 1 - rank}};
    ExchangeFacts facts = team.facts(rank);
    facts.memory.wait.abort = &abort;
    const bool done =
        Team::run(test::launches_of(test::exchange_of(calls, rank).value(), facts), random);
    std::atomic_ref(abort).store(1);  // else the sender would wait for credit
    return done;
  });
  CHECK(good == 0);
  CHECK(team.failure(1).kind == static_cast<std::uint32_t>(FailureKind::unreadable));
  CHECK(team.failure(1).rank == 0);
}

TEST_CASE("a sender whose memory the kernel cannot read sends it through slots", "[req:5.9]") {
  SystemTable table = real_system_table();
  table.process_vm_readv = [](pid_t, const iovec*, unsigned long, const iovec*, unsigned long,
                              unsigned long) -> ssize_t {
    errno = EFAULT;
    return -1;
  };
  const ScopedSystemTable scoped(table);
  Team team(2, 1 << 14, Reach::other_process);
  const std::vector<Bytes> sent = {pattern(1, 70'001), pattern(2, 100), pattern(3, 200'000)};
  std::vector<Bytes> received = {Bytes(70'001), Bytes(100), Bytes(200'000)};
  const int good = team.on_ranks([&](int rank) {
    std::mt19937_64 random(1);
    std::vector<PointToPoint> calls;
    for (std::size_t i = 0; i < sent.size(); ++i) {
      std::byte* const data =
          rank == 0 ? const_cast<std::byte*>(sent[i].data()) : received[i].data();
      calls.push_back({rank == 0, data, sent[i].size(), 1 - rank});
    }
    const auto exchange = test::exchange_of(calls, rank);
    return Team::run(test::launches_of(exchange.value(), team.facts(rank)), random);
  });
  CHECK(good == 2);
  CHECK(received == sent);
}

namespace {

std::atomic<int> reading;                      // 1: the read has started, 2: the sender has left
std::uint32_t sender_aborts, receiver_aborts;  // abort words

ssize_t read_once_the_sender_has_left(pid_t pid, const iovec* here, unsigned long here_count,
                                      const iovec* there, unsigned long there_count,
                                      unsigned long flags) {
  if (here->iov_len > 1) {  // else it is the sender's test read of its own memory
    reading = 1;
    std::atomic_ref(sender_aborts).store(1);
    while (reading != 2) std::this_thread::yield();
  }
  return ::process_vm_readv(pid, here, here_count, there, there_count, flags);
}

/// Sends from rank 0 to rank 1; calls `leave` once the sender's call has returned. Returns the
/// number of ranks whose call succeeded.
int send_once(Team& team, std::span<std::byte> sent, std::span<std::byte> received,
              const std::function<void()>& leave) {
  return team.on_ranks([&](int rank) {
    std::mt19937_64 random(1);
    const std::span<std::byte> own = rank == 0 ? sent : received;
    const std::vector<PointToPoint> calls = {{rank == 0, own.data(), own.size(), 1 - rank}};
    ExchangeFacts facts = team.facts(rank);
    facts.memory.wait.abort = rank == 0 ? &sender_aborts : &receiver_aborts;
    const bool done =
        Team::run(test::launches_of(test::exchange_of(calls, rank).value(), facts), random);
    if (rank == 0) {
      leave();
      std::atomic_ref(receiver_aborts).store(1);  // the receiver learns of the abort
    }
    return done;
  });
}

}  // namespace

TEST_CASE("a receiver that reads while its sender gives up fails, for it may have other data",
          "[req:5.9][req:1.12]") {
  SystemTable table = real_system_table();
  table.process_vm_readv = read_once_the_sender_has_left;
  const ScopedSystemTable scoped(table);
  Team team(2, 1 << 14, Reach::other_process);
  Bytes sent(300'000, std::byte{1}), received(sent.size());
  sender_aborts = receiver_aborts = 0;
  reading = 0;
  const int good = send_once(team, sent, received, [&] {
    std::fill(sent.begin(), sent.end(),
              std::byte{2});  // legal for the user once the call has ended
    reading = 2;
  });
  CHECK(good == 0);
}

TEST_CASE("the source of a rendezvous read may be freed once its send has failed",
          "[req:5.9][req:1.12]") {
  constexpr std::size_t kBytes = 8 << 20;
  std::mt19937_64 random(test::test_seed());
  Bytes received(kBytes);
  for (int turn = 0; turn < test::repeats(40, 8); ++turn) {
    Team team(2, 1 << 14, Reach::own_process);
    void* const memory =
        ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    REQUIRE(memory != MAP_FAILED);
    const std::span sent(static_cast<std::byte*>(memory), kBytes);
    std::fill(sent.begin(), sent.end(), std::byte{1});
    std::fill(received.begin(), received.end(), std::byte{0});
    sender_aborts = receiver_aborts = 0;
    std::thread aborter([pause = random() % 1500] {
      std::this_thread::sleep_for(std::chrono::microseconds(pause));
      std::atomic_ref(sender_aborts).store(1);
    });
    const int good = send_once(team, sent, received, [&] { ::munmap(memory, kBytes); });
    aborter.join();
    INFO("turn " << turn);
    const bool is_all_there = std::count(received.begin(), received.end(), std::byte{1}) ==
                              static_cast<std::ptrdiff_t>(kBytes);
    if (good > 0) CHECK(is_all_there);  // the receiver's call succeeded
  }
}

TEST_CASE(
    "a sender does not wait for a receiver whose last buffer had no offer, wherever the next is",
    "[req:5.9][req:5.22]") {
  Team team(2, 1 << 17);
  Bytes data = pattern(1, 20'000);
  REQUIRE(data.size() >= team.layout().least_direct_bytes);
  Bytes plain(data.size());
  const auto window = std::as_writable_bytes(team.buffer(1)).first(data.size());
  const auto run = [&](int rank, std::byte* to, ExchangeFacts facts) {
    std::mt19937_64 random(static_cast<unsigned>(rank));
    const bool sends = rank == 0;
    const PointToPoint call{sends, sends ? data.data() : to, data.size(), 1 - rank};
    return Team::run(test::launches_of(test::exchange_of({call}, rank).value(), facts), random);
  };
  const auto waits = [&](int rank) {
    ExchangeFacts facts = team.facts(rank);
    facts.memory.processes = nullptr;  // no rank reads another's memory
    return facts;
  };
  Team readers(2, 1 << 17, PeerProcess::Reach::own_process);
  for (std::byte* const to : {plain.data(), window.data(), plain.data()}) {
    // Both run at once, and the offer is none.
    REQUIRE(team.on_ranks([&](int rank) { return run(rank, plain.data(), waits(rank)); }) == 2);
    std::fill_n(to, data.size(), std::byte{0});
    REQUIRE(run(0, nullptr, waits(0)));  // ends although the receiver has not called
    ExchangeFacts facts = waits(1);
    // In the last round the receiver offers to read the message.
    if (to == plain.data()) facts.memory.processes = readers.facts(1).memory.processes;
    REQUIRE(run(1, to, facts));
    CHECK(std::equal(data.begin(), data.end(), to));
  }
}

TEST_CASE("a receive in packets of another size than its send fails", "[req:5.3]") {
  for (const auto& [sent, received] :
       {std::pair(8u, 56u), std::pair(40u, 48u), std::pair(56u, 8u)}) {
    Team team(2, 1 << 14);
    std::vector<Bytes> data(2, Bytes(64));
    // Sends equal messages in the first turns, so that the last turn reuses slots.
    for (int turn = 0; turn < 6; ++turn) {
      const bool is_last = turn == 5;
      const int good = team.on_ranks([&, sent = sent, received = received](int rank) {
        std::mt19937_64 random(1);
        const std::uint64_t bytes = !is_last ? 8 : rank == 0 ? sent : received;
        const auto exchange = test::exchange_of(
            {{rank == 0, data[static_cast<std::size_t>(rank)].data(), bytes, 1 - rank}}, rank);
        return Team::run(test::launches_of(exchange.value(), team.facts(rank)), random);
      });
      CHECK(good == (is_last ? 1 : 2));
    }
    CHECK(team.failure(1).kind == static_cast<std::uint32_t>(FailureKind::world_signature));
  }
}

TEST_CASE("a message in packets and one in slots do not pass for each other", "[req:5.3]") {
  for (const bool sends_packets : {true, false}) {
    Team team(2, 1 << 14);
    const std::uint64_t in_packets = team.layout().most_packet_bytes;
    std::vector<Bytes> data(2, Bytes(in_packets + 1));
    const int good = team.on_ranks([&](int rank) {
      std::mt19937_64 random(1);
      const std::uint64_t bytes = (rank == 0) == sends_packets ? 8 : in_packets + 1;
      std::byte* const own = data[static_cast<std::size_t>(rank)].data();
      const std::vector<PointToPoint> calls = {{rank == 0, own, bytes, 1 - rank}};
      const auto exchange = test::exchange_of(calls, rank);
      return Team::run(test::launches_of(exchange.value(), team.facts(rank)), random);
    });
    CHECK(good == 1);
    CHECK(team.failure(1).kind == static_cast<std::uint32_t>(FailureKind::world_signature));
  }
}

namespace {

/// Two ranks of which one sends equal short messages to the other.
class ShortPair {
 public:
  explicit ShortPair(std::size_t bytes) : sent_(pattern(1, bytes)), received_(bytes) {}

  Exchange exchange_of(int rank, std::size_t count, std::size_t bytes) {
    std::byte* const data = rank == 0 ? sent_.data() : received_.data();
    const std::vector<PointToPoint> calls(count, {rank == 0, data, bytes, 1 - rank});
    return test::exchange_of(calls, rank).value();
  }
  bool run_shortly(Exchange& exchange, int rank) {
    return run_short_exchange_on_host(exchange, team.facts(rank));
  }
  bool run_launches(const Exchange& exchange, int rank) {
    std::mt19937_64 random(1);
    return Team::run(test::launches_of(exchange, team.facts(rank)), random);
  }
  /// Returns whether the last message has arrived, and forgets it.
  bool take_received() {
    const bool equal = received_ == sent_;
    std::fill(received_.begin(), received_.end(), std::byte{});
    return equal;
  }
  Team team{2, 1 << 14};

 private:
  Bytes sent_;
  Bytes received_;
};

}  // namespace

TEST_CASE("short messages move as far as there are slots and data, the rest stays in the exchange",
          "[req:5.3][req:5.22]") {
  for (const std::size_t bytes : {std::size_t{100}, std::size_t{3000}}) {
    INFO("messages of " << bytes << " B");
    ShortPair pair(bytes);
    const std::size_t depth = 4;
    REQUIRE(pair.team.layout().packet_depth == depth);
    REQUIRE(pair.team.layout().depth == depth);
    for (std::size_t i = 0; i < depth; ++i) {  // slots of packets are first written by a launch
      REQUIRE(pair.run_launches(pair.exchange_of(0, 1, bytes), 0));
      REQUIRE(pair.run_launches(pair.exchange_of(1, 1, bytes), 1));
    }
    for (int turn = 0; turn < 20; ++turn) {
      Exchange sends = pair.exchange_of(0, depth + 2, bytes);
      Exchange receives = pair.exchange_of(1, depth + 2, bytes);
      static_cast<void>(pair.take_received());
      CHECK_FALSE(pair.run_shortly(sends, 0));
      const std::size_t left = sends.sends.size();
      REQUIRE(left >= 2);
      REQUIRE(left <= 2 + depth / 2);
      CHECK_FALSE(pair.run_shortly(receives, 1));
      CHECK(receives.receives.size() == left);
      CHECK(pair.take_received());
      const int good = pair.team.on_ranks(
          [&](int rank) { return pair.run_launches(rank == 0 ? sends : receives, rank); });
      REQUIRE(good == 2);
      CHECK(pair.take_received());
    }
    // A message of another size stays, and the launch reports it.
    Exchange sends = pair.exchange_of(0, 1, bytes);
    Exchange receives = pair.exchange_of(1, 1, bytes - 1);
    REQUIRE(pair.run_shortly(sends, 0));
    CHECK_FALSE(pair.run_shortly(receives, 1));
    CHECK_FALSE(pair.run_launches(receives, 1));
    CHECK(pair.team.failure(1).kind == static_cast<std::uint32_t>(FailureKind::world_signature));
  }
}

TEST_CASE("only messages that fit into a slot and a launch are short", "[req:5.22]") {
  ShortPair pair(100'000);
  const auto is_short_of = [&](std::size_t count, std::size_t bytes) {
    return is_short(pair.exchange_of(0, count, bytes), pair.team.facts(0, 10));
  };
  const ChannelLayout& layout = pair.team.layout();
  CHECK(is_short_of(10, 1));
  CHECK_FALSE(is_short_of(11, 1));
  CHECK(is_short_of(1, layout.packet_bytes));
  CHECK_FALSE(is_short_of(1, layout.packet_bytes + 1));  // this layout has packets in many slots
  CHECK(is_short_of(1, layout.most_packet_bytes + 1));
  CHECK(is_short_of(1, layout.slot_bytes));
  CHECK_FALSE(is_short_of(1, layout.slot_bytes + 1));
  CHECK_FALSE(is_short_of(1, layout.least_direct_bytes));
  ExchangeFacts facts = pair.team.facts(0);
  facts.most_ctas = 1;
  CHECK_FALSE(is_short(pair.exchange_of(0, 1, 1), facts));
}

TEST_CASE("a send to oneself without its receive is refused", "[req:5.10]") {
  Bytes data(8);
  const auto alone = test::exchange_of({{true, data.data(), 8, 3}}, 3);
  REQUIRE(!alone.ok());
  CHECK(alone.error().code() == ErrorCode::invalid_usage);
  const auto unequal =
      test::exchange_of({{true, data.data(), 8, 3}, {false, data.data(), 4, 3}}, 3);
  REQUIRE(!unequal.ok());
}

TEST_CASE("a launch holds whole rounds, in their order", "[req:5.1]") {
  Team team(4, 1 << 14);
  Bytes data(64);
  std::vector<PointToPoint> calls;
  for (int i = 0; i < 5; ++i) {
    for (int peer = 0; peer < 4; ++peer) {
      if (peer == 1) continue;
      calls.push_back({true, data.data(), 64, peer});
      calls.push_back({false, data.data(), 64, peer});
    }
  }
  const auto launches = test::launches_of(test::exchange_of(calls, 1).value(), team.facts(1, 8));
  REQUIRE(launches.size() == 4);  // 15 rounds of two messages, four rounds a launch
  // Counts the messages to each peer so far: the launches begin at rounds 0, 4, 8 and 12.
  std::vector<int> sent(4);
  for (std::size_t i = 0; i < launches.size(); ++i) {
    const ExchangeArguments& launch = launches[i];
    CHECK(launch.messages <= 8);
    CHECK(launch.sends * 2 == launch.messages);
    for (int k = 0; k < launch.sends; ++k) ++sent[static_cast<std::size_t>(launch.message[k].peer)];
    const int rounds = std::min(15, 4 * static_cast<int>(i + 1));
    for (int distance = 1; distance < 4; ++distance) {
      const int whole = (rounds - distance + 3) / 3;  // rounds of this distance so far
      CHECK(sent[static_cast<std::size_t>((1 + distance) % 4)] == whole);
    }
  }
}
