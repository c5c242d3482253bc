// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
// Processes that stop in the middle of a join, at each of its messages, and go on.
#include <atomic>
#include <chrono>
#include <csignal>
#include <fstream>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <catch2/catch.hpp>
#include <unistd.h>

#include "base/system_table.hpp"
#include "base/try.hpp"
#include "boot/session/forked_ranks.hpp"
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

/// Three ranks, of which rank 0's process serves the rendezvous; `victim` stops at message `k`.
class Trio {
 public:
  Trio(int victim, int k)
      : victim_(victim), ranks_(kTrio, [=, this](int rank) { return live(rank, victim, k); }) {}

  /// Whether the victim has stopped.
  bool stopped() const {
    std::ifstream stat("/proc/" + std::to_string(ranks_.pid(victim_)) + "/stat");
    std::string text;
    std::getline(stat, text);
    const auto name_end = text.rfind(')');
    return name_end != std::string::npos && text.substr(name_end, 3) == ") T";
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
  // How many messages there are depends a little on which come together.
  CHECK(stopped * 4 >= static_cast<int>(trios.size()) * 3);
  // Longer than the root service and the ranks' acceptors wait for a proof or a hello.
  std::this_thread::sleep_for(2500ms);
  for (const auto& trio : trios) trio->resume();
  for (std::size_t i = 0; i < trios.size(); ++i) {
    CAPTURE(titles[i]);
    CHECK(trios[i]->collect() == all_ok(kTrio));
  }
}

namespace {

struct Scene {
  std::atomic<bool> made{false};
  UniqueId id;
};

}  // namespace

TEST_CASE("the death of the process that made the id is told within a second", "[req:1.12]") {
  test::FairTimer timer;
  const Shared<Scene> scene;
  ForkedRanks ranks(2, [&](int rank) -> Status {
    if (rank == 0) {  // makes the id and joins nothing
      ORIEL_TRY(scene->id, create_unique_id(kLoopback.socket));
      scene->made = true;
      for (;;) ::pause();
    }
    test::eventually([&] { return scene->made.load(); });
    return join_once(scene->id, rank, 2);
  });
  REQUIRE(test::eventually([&] { return scene->made.load(); }));
  std::this_thread::sleep_for(200ms);  // the rank has introduced itself
  timer.restart();
  ranks.kill(0, SIGKILL);
  const auto verdicts = ranks.collect(20s);
  CHECK(timer.spent() < 1s);
  CHECK(contains(verdicts[1], "the process that made the unique id"));
  CHECK(contains(verdicts[1], "has died"));
}

namespace {

std::atomic<bool> out_of_memory{false};

}  // namespace

TEST_CASE("a root service without memory ends its ranks' waits, and can start again",
          "[req:1.38]") {
  static const SystemTable table = [] {
    SystemTable made = real_system_table();
    made.epoll_wait = [](int epoll_fd, epoll_event* events, int capacity, int timeout_ms) {
      const int count = real_system_table().epoll_wait(epoll_fd, events, capacity, timeout_ms);
      // Only the service's thread waits in a poller.
      if (timeout_ms != 0 && out_of_memory) throw std::bad_alloc();
      return count;
    };
    return made;
  }();
  const ScopedSystemTable scoped(table);
  const UniqueId id = new_id();
  const test::FairTimer timer;
  const std::jthread shortage([] {
    std::this_thread::sleep_for(100ms);
    out_of_memory = true;
    static_cast<void>(create_unique_id(kLoopback.socket));  // gives the service something to do
  });
  CHECK(contains(text_of(join_once(id, 0, 2)), "which serves the rendezvous, has died"));
  out_of_memory = false;
  CHECK(timer.spent() < 5s);  // its patience is 20 s
  const UniqueId next = new_id();
  CHECK(run_threads(2, [&](int rank) { return join_once(next, rank, 2); }) == all_ok(2));
}

}  // namespace oriel::boot
