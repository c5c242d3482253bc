// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdlib>
#include <random>
#include <utility>

#include <catch2/catch.hpp>

#include "net/failover/failover_pair.hpp"
#include "net/failover/failover_workload.hpp"

// Random work of both ends for each other over two paths (3.14). The paths fail at random in every
// way there is, and the channel loses and delays messages. One seed is one run. A model that
// executes everything once and in order gives the expected result.
namespace oriel::net::test {

using std::chrono::milliseconds;

inline FailoverPair::Options options_of(std::mt19937_64& random, std::uint64_t seed) {
  FailoverPair::Options options;
  options.seed = seed;
  options.queue.depth = 128u << random() % 3;
  options.queue.piece_bytes = random() % 2 == 0 ? 256 : 4096;
  options.queue.answer_timeout = milliseconds(2 + random() % 6);
  options.queue.retransmissions_most = static_cast<std::uint32_t>(1 + random() % 4);
  // About half of the runs wrap the 16-bit index.
  options.queue.base = random() % 2 == 0 ? 0 : 65536 - random() % 300;
  options.health.suspect_after = milliseconds(5);
  options.health.fail_after = milliseconds(20);
  options.health.probe_every = milliseconds(1);
  options.health.retry_first = milliseconds(5);
  options.health.retry_most = milliseconds(20);
  options.health.errors_most = static_cast<std::uint32_t>(1 + random() % 2);
  options.health.answers_needed = static_cast<std::uint32_t>(1 + random() % 3);
  options.agreement.retransmit_interval = milliseconds(2);
  return options;
}

/// Applies a random fault to one path, and removes it again.
struct RandomFault {
  FailoverPair& pair;
  std::mt19937_64& random;
  std::size_t path = 0;

  void begin() {
    path = random() % 2;
    const bool here = random() % 2 == 0;
    FailoverRank& rank = here ? pair.a : pair.b;
    NicSoft& nic = *rank.nics[path];
    NicFaults faults;
    faults.seed = random();
    faults.clock = &pair.clock;
    switch (random() % 6) {
      case 0:
        return stop_nic(nic);
      case 1:
        rank.faults[path]->cut = true;
        return;
      case 2:
      case 3:
        faults.fails = {{{0, random() % 8}, Syndrome::transport_retry, random() % 2 == 0}};
        break;
      case 4:
        faults.lost_responses = {{0, random() % 20, 1 + random() % 1000}};
        break;
      default:
        faults.skip_turns = true;
        faults.response_delay = milliseconds(random() % 4);
        faults.delays = {{{}, Duration(0), milliseconds(1)}};
        break;
    }
    set_faults(nic, std::move(faults));
  }
  void end() {
    for (FailoverRank* rank : {&pair.a, &pair.b}) {
      rank->faults[path]->cut = false;
      NicFaults none;
      none.clock = &pair.clock;  // clock by which held messages become due
      set_faults(*rank->nics[path], std::move(none));
      resume_nic(*rank->nics[path]);
    }
  }
};

/// Runs one seed. `adapt` changes the options that the seed has drawn.
template <class Adapt>
void run_random(std::uint64_t seed, const Adapt& adapt) {
  std::mt19937_64 random(seed * 104'729);
  FailoverPair::Options drawn = options_of(random, seed);
  adapt(drawn);
  FailoverPair pair(drawn);
  pair.post.loss = static_cast<double>(random() % 40) / 100;
  pair.post.duplication = static_cast<double>(random() % 30) / 100;
  pair.post.delay_most = static_cast<int>(random() % 30);
  Workload there(*pair.there, *pair.back, pair.a, pair.b, seed);
  Workload back(*pair.back, *pair.there, pair.b, pair.a, seed + 1000);
  RandomFault fault{pair, random};
  const auto work = [&](Duration time) {
    for (const TimePoint end = pair.clock.now() + time; pair.clock.now() < end; pair.step()) {
      if (random() % 4 != 0) there.post(random() % 2 == 0);
      if (random() % 4 != 0) back.post(random() % 2 == 0);
    }
  };
  const auto is_whole = [&] {
    for (const WatchedChannel* sent : {&pair.sent_there, &pair.sent_back}) {
      if (!sent->is_usable(0) || !sent->is_usable(1) || !sent->is_running()) return false;
    }
    // Waits for all work if an engine moves a GPU's bytes: a failing WQE ends only once its bytes
    // have moved, perhaps much later.
    return pair.a.engine == nullptr || (there.is_done() && back.is_done());
  };
  for (int round = 0; round < 6; ++round) {
    INFO("seed " << seed << ", round " << round);
    fault.begin();
    work(milliseconds(random() % 60));
    fault.end();
    work(milliseconds(random() % 20));
    // Waits until both paths are usable: the next fault may hit the other path, and one path has to
    // work.
    there.ring(), back.ring();
    const bool whole = pair.run_until(is_whole, std::chrono::seconds(5));
    INFO("seed " << seed << ", round " << round << pair.states());
    REQUIRE(whole);
  }
  there.ring(), back.ring();
  const bool done = pair.run_until([&] { return there.is_done() && back.is_done(); });
  INFO("seed " << seed << pair.states());
  REQUIRE(done);
  there.check_all();
  back.check_all();
  CHECK(there.wqes() + back.wqes() > 100);
}

/// Runs ORIEL_TEST_ROUNDS times `count` seeds, from ORIEL_TEST_SEED on (default 1 for both).
template <class Adapt>
void run_seeds(std::uint64_t count, const Adapt& adapt) {
  const char* rounds = std::getenv("ORIEL_TEST_ROUNDS");
  const std::uint64_t seeds = count * (rounds != nullptr ? std::strtoull(rounds, nullptr, 10) : 1);
  const char* first = std::getenv("ORIEL_TEST_SEED");
  const std::uint64_t from = first != nullptr ? std::strtoull(first, nullptr, 10) : 1;
  for (std::uint64_t seed = from; seed < from + seeds; ++seed) run_random(seed, adapt);
}

}  // namespace oriel::net::test
