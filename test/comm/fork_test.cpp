// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <chrono>
#include <csignal>
#include <cstdio>
#include <exception>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <catch2/catch.hpp>
#include <sched.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "api/api_ranks.hpp"
#include "support/fair_timer.hpp"

// Ranks that fork, as programs with data loaders do.
namespace oriel::test {
namespace {

using namespace std::chrono_literals;

enum Word : std::size_t { kReady, kGo, kSeen };

void await(Players& players, std::size_t word) {
  for (int i = 0; players.word(word) == 0; ++i) {
    require(i < 20'000, "the other rank has not come so far");
    std::this_thread::sleep_for(1ms);
  }
}

void add_one(Communicator& comm) {
  int value = 1;
  must(comm.all_reduce({.input = &value, .output = &value, .count = 1, .type = DataType::i32}));
  require(value == comm.size(), "the sum");
}

/// How rank 1 makes the child that lives on, and what lies between the ranks.
struct Scene {
  const char* title;
  bool bare = false;        ///< by clone(), of which no handler is told
  bool two_nodes = false;   ///< by ORIEL_HOSTID
  bool namespaced = false;  ///< rank 1 is in another PID namespace
};

/// Whether the caller is the child.
bool is_child(pid_t made) {
  require(made >= 0, "fork");
  return made == 0;
}

void live_and_die(Players& players, const Scene& scene) {
  auto comm = join(players);
  add_one(comm);
  const auto made = scene.bare ? ::syscall(SYS_clone, SIGCHLD, nullptr, nullptr, nullptr, nullptr)
                               : static_cast<long>(::fork());
  if (is_child(static_cast<pid_t>(made))) {
    for (int i = 0; players.word(kSeen) == 0 && i < 10'000; ++i) ::usleep(1000);
    ::_exit(0);
  }
  players.word(kReady) = 1;
  await(players, kGo);
  ::kill(::getpid(), SIGKILL);
}

/// As a child of the first process of a new PID namespace, with whom all others in it end.
void live_in_namespace(Players& players, const Scene& scene) {
  require(::unshare(CLONE_NEWPID) == 0, "unshare");
  const pid_t first = ::fork();
  if (is_child(first)) {
    const pid_t rank = ::fork();
    if (is_child(rank)) live_and_die(players, scene);
    ::waitpid(rank, nullptr, 0);
    for (int i = 0; players.word(kSeen) == 0 && i < 10'000; ++i) ::usleep(1000);
    ::_exit(0);
  }
  ::waitpid(first, nullptr, 0);
}

void see_the_death(Players& players) {
  auto comm = join(players);
  add_one(comm);
  await(players, kReady);
  FairTimer timer;
  timer.restart();
  players.word(kGo) = 1;
  std::optional<Error> error;
  while (!error && timer.spent() < 1s) {
    std::this_thread::sleep_for(1ms);
    error = comm.async_error();
  }
  players.word(kSeen) = 1;
  require(error && error->origin_rank() == 1, error ? error->to_string() : "not seen");
}

bool may_make_namespaces() {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(::unshare(CLONE_NEWPID) == 0 ? 0 : 1);
  int status = 0;
  ::waitpid(child, &status, 0);
  return status == 0;
}

}  // namespace

TEST_CASE("1.12 the death of a rank is seen within a second though a child of it lives on") {
  const Scene scenes[] = {
      {.title = "one node"},
      {.title = "two nodes of one machine", .two_nodes = true},
      {.title = "no handler in the child", .bare = true},
      {.title = "no handler in the child, two nodes", .bare = true, .two_nodes = true},
      {.title = "another PID namespace", .namespaced = true},
      {.title = "another PID namespace, two nodes", .two_nodes = true, .namespaced = true},
  };
  for (const Scene& scene : scenes) {
    CAPTURE(scene.title);
    if (scene.namespaced && !may_make_namespaces()) {
      WARN("not tried: a PID namespace cannot be made");
      continue;
    }
    const auto verdicts = play(Cast::processes, 2, [&](Players& players) {
      const char* const host = players.first() == 0 ? "a" : "b";
      const Environment named(Variables{{"ORIEL_HOSTID", scene.two_nodes ? host : ""}});
      if (players.first() == 0) return see_the_death(players);
      return scene.namespaced ? live_in_namespace(players, scene) : live_and_die(players, scene);
    });
    CHECK(verdicts.front() == "ok");
  }
}

}  // namespace oriel::test
