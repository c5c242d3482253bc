// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
// Tests processes that stop at each message of a join and continue later.
#include <atomic>
#include <chrono>
#include <csignal>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <catch2/catch.hpp>
#include <sys/wait.h>

#include "base/try.hpp"
#include "boot/session/inherited_memory.hpp"
#include "boot/support/loopback.hpp"
#include "support/fair_timer.hpp"
#include "support/process_state.hpp"
#include "support/stop_at_message.hpp"

namespace oriel::boot {
namespace {

using namespace std::chrono_literals;
using std::chrono::steady_clock;

constexpr int kTrio = 3;

/// Three ranks; the process of rank 0 serves the rendezvous. `victim` stops at message `k`.
class Trio {
 public:
  Trio(int victim, int k)
      : victim_(victim), ranks_(kTrio, [=, this](int rank) { return live(rank, victim, k); }) {}

  /// Returns true if the victim has stopped.
  bool stopped() const {
    siginfo_t found{};
    constexpr int kPeekOptions = WSTOPPED | WNOHANG | WNOWAIT;
    return ::waitid(P_PID, static_cast<id_t>(ranks_.pid(victim_)), &found, kPeekOptions) == 0 &&
           found.si_code == CLD_STOPPED;
  }
  void resume() { ranks_.kill(victim_, SIGCONT); }
  std::vector<std::string> collect() { return ranks_.collect(25s); }
  int sent() const { return place_->sent; }

 private:
  struct Place {
    std::atomic<bool> made{false};
    UniqueId id;
    std::atomic<int> sent{0};
  };

  Status live(int rank, int victim, int k) {
    std::optional<test::StopAtMessage> stop;
    if (rank == victim) stop.emplace(k);
    if (rank == 0) {
      ORIEL_TRY(place_->id, create_unique_id(kLoopback.socket));
      place_->made = true;
    }
    test::eventually([&] { return place_->made.load(); });
    return in_session(place_->id, rank, kTrio, [&](EventLoop& loop, Session& session) {
      if (stop) place_->sent = static_cast<int>(stop->sent());
      return loop.run(one_barrier(loop, session, 20s));
    });
  }

  const Shared<Place> place_;
  const int victim_;
  ForkedRanks ranks_;
};

}  // namespace

TEST_CASE("a process that stops for seconds at any message of a join does not make it fail",
          "[req:1.12]") {
  std::vector<std::unique_ptr<Trio>> trios;
  std::vector<std::string> titles;
  for (const int victim : {0, 1}) {
    Trio counted(victim, 0);
    REQUIRE(counted.collect() == all_ok(kTrio));
    const int messages = counted.sent();
    REQUIRE(messages >= 4);
    for (int k = 1; k <= messages; ++k) {
      trios.push_back(std::make_unique<Trio>(victim, k));
      titles.push_back("rank " + std::to_string(victim) + " stopped at message " +
                       std::to_string(k) + " of about " + std::to_string(messages));
    }
  }
  const auto end = steady_clock::now() + 10s;
  int stopped = 0;
  for (const auto& trio : trios) {
    while (!trio->stopped() && steady_clock::now() < end) std::this_thread::sleep_for(1ms);
    stopped += trio->stopped() ? 1 : 0;
  }
  // The number of messages varies slightly, because some are sent together.
  CHECK(stopped * 4 >= static_cast<int>(trios.size()) * 3);
  // Exceeds the timeout of the root service and of the ranks' acceptors for a response or a hello.
  std::this_thread::sleep_for(2500ms);
  for (const auto& trio : trios) trio->resume();
  for (std::size_t i = 0; i < trios.size(); ++i) {
    CAPTURE(titles[i]);
    CHECK(trios[i]->collect() == all_ok(kTrio));
  }
}

TEST_CASE("if the process that made the id dies, a joining rank gets an error within a second",
          "[req:1.12]") {
  test::FairTimer timer;
  ServedId id;
  ForkedRanks ranks(1, [&](int) { return join_once(id.value(), 1, 2); });
  std::this_thread::sleep_for(200ms);  // the rank has sent its hello
  timer.restart();
  id.kill();
  const auto results = ranks.collect(20s);
  CHECK(timer.spent() < 1s);
  check_all_say(results, {"the process that made the unique id", "has died"});
}

}  // namespace oriel::boot
