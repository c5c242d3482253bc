// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <atomic>
#include <chrono>
#include <cstring>
#include <random>
#include <string>

#include <catch2/catch.hpp>

#include "comm/support/network_players.hpp"
#include "comm/support/on_model.hpp"
#include "comm/support/path_players.hpp"

// GPU ranks that reach each other by two paths, on the model of the CUDA driver: what kernels would
// do, the ranks' threads do in the model's memory (3.14).
namespace oriel::test {
namespace {

using namespace std::chrono_literals;
/// `process`: one copies for all NICs of a rank, on a model of the driver of its own.
void play_gpus_by_paths(const Nodes& nodes, const Variables& settings, bool process,
                        const Body& body) {
  skip_without_fabric();
  INFO(nodes.text() << (process ? ", copied by processes" : ", copied by threads"));
  const Environment environment(
      Variables{{"ORIEL_BACKEND", "cuda"},
                {"ORIEL_NIC_PROCESS", process ? "1" : "0"},
                {"ORIEL_NIC_PROGRAM", ORIEL_TEST_NIC_PROGRAM},
                {"ORIEL_TEST_MODEL_DEVICES", std::to_string(nodes.ranks())}});
  check_all_ok(play(Cast::processes, nodes.ranks(), [&](Players& players) {
    const Environment common(settings), own(on_node(nodes, players.first()));
    const OnModel on_model(nodes.ranks(), players.first());
    body(players);
  }));
}

/// Each rank puts words with signals to the next one, round after round, of which all are to be
/// there when their signal is, and no signal comes twice.
class Ring {
 public:
  Ring(Players& players, Rank& rank)
      : rank_(rank),
        window_(rank.window.view()),
        next_((players.first() + 1) % players.size()),
        before_((players.first() + players.size() - 1) % players.size()) {}
  void run(int rounds) {
    for (int i = 0; i < rounds; ++i) round();
  }
  std::uint64_t rounds() const { return rounds_; }

 private:
  static constexpr std::uint32_t kSignal = 5;
  static constexpr std::size_t kBytes = 3000, kSource = 4096;
  void round() {
    ++rounds_;
    const auto salt = rounds_;
    for (std::size_t i = 0; i < kBytes; ++i)
      *rank_.at(kSource + i) = pattern(rank_.view().world_rank, salt, i);
    const auto posted = device::world_put_signal(kThread, rank_.view(), next_, window_, 0, window_,
                                                 kSource, kBytes, kSignal, 1);
    require(posted.outcome, "a put with a signal");
    require(device::wait_signal(kThread, rank_.view(), kSignal, rounds_, before_), "a signal");
    for (std::size_t i = 0; i < kBytes; ++i) {
      test::require(*rank_.at(i) == pattern(before_, salt, i), "a byte behind its signal");
    }
    test::require(device::read_signal(rank_.view(), kSignal) == rounds_, "each signal once");
    // What was seen is this rank's own again, and nothing may come after it.
    std::memset(rank_.at(0), 0xaa, kBytes);
    require(device::world_flush(kThread, rank_.view()), "the put");
    rank_.sync("the barrier behind all puts");
    for (std::size_t i = 0; i < kBytes; ++i) {
      test::require(*rank_.at(i) == 0xaa, "nothing is put twice");
    }
    rank_.sync("the barrier before the next ones");
  }

  Rank& rank_;
  const device::WindowView window_;
  const int next_, before_;
  std::uint64_t rounds_ = 0;
};

}  // namespace

TEST_CASE("ranks on GPUs with a backup path use the first one as long as it works", "[req:3.14]") {
  play_gpus_by_paths({{2, 1}}, with_patience(), true, use_first_path);
}

TEST_CASE("what fails on a GPU's path is done once, by the other, which is left again",
          "[req:3.14][F3]") {
  const std::uint64_t seed = std::random_device()();
  INFO("seed " << seed);
  // So early that the barriers alone come to it.
  play_gpus_by_paths({{1, 1, 1}}, with_patience(), GENERATE(false, true),
                     [&](Players& players) { leave_failed_path(players, seed, 3); });
}

TEST_CASE("what a GPU's NIC has done, and lost its answers to, is not done again",
          "[req:3.14][F4]") {
  const std::uint64_t seed = std::random_device()();
  INFO("seed " << seed);
  play_gpus_by_paths({{1, 1}}, kTwoPaths, false,
                     [&](Players& players) { lose_answers(players, seed); });
}

TEST_CASE("puts of GPUs go on by the backup when a NIC stops or dies, and come back",
          "[req:3.14][F6]") {
  play_gpus_by_paths({{1, 1, 1}}, kTwoPaths, true, [](Players& players) {
    Rank rank(players, 8192, kWorld);
    Ring ring(players, rank);
    ring.run(5);
    players.barrier();
    if (players.first() == 0) network_of(rank).nic().stop();
    if (players.first() == 2) network_of(rank).nic().die();
    ring.run(20);
    for (int peer : {0, 2}) {
      if (peer != players.first()) await_path(rank, peer, 1);
    }
    // Though a path that is dead is probed, and its probes wait.
    const auto is_idle = [&] { return network_of(rank).is_idle(); };
    for (int i = 0; i < 300 && !is_idle(); ++i) std::this_thread::sleep_for(10ms);
    require(is_idle(), "all that was posted is done");
    players.barrier();
    {
      auto memory = must(rank.comm.allocate(4096));
      auto window = must(rank.comm.register_window(memory));
      static_cast<std::uint8_t*>(memory.data())[8] = static_cast<std::uint8_t>(7 + players.first());
      players.barrier();
      const int peer = (players.first() + 1) % 3, from = (players.first() + 2) % 3;
      require(device::world_put_signal(kThread, rank.view(), peer, window.view(), 0, window.view(),
                                       8, 1, 6)
                  .outcome,
              "a put into a later window");
      require(device::wait_signal(kThread, rank.view(), 6, 1, from), "its signal");
      require(static_cast<std::uint8_t*>(memory.data())[0] == 7 + from, "what was put");
      players.barrier();
    }
    // The one that only stopped comes back.
    if (players.first() == 0) network_of(rank).nic().resume();
    if (players.first() == 0) await_path(rank, 1, 0);
    if (players.first() == 1) await_path(rank, 0, 0);
    players.barrier();
    ring.run(10);
    players.barrier();
  });
}

TEST_CASE("a GPU whose NICs both die is named by all others, though asked for nothing",
          "[req:3.14][F7]") {
  play_gpus_by_paths({{1, 1, 1}}, kTwoPaths, false, [](Players& players) {
    lose_both_nics(players, [](Rank& rank) { wait_until_named(rank, 1, 1); });
  });
}

TEST_CASE("one NIC of a GPU that is silent, and asked for nothing, is left by its peers",
          "[req:3.14][F7]") {
  play_gpus_by_paths({{1, 1}}, kTwoPaths, false, [](Players& players) {
    Rank rank(players, 8192, kWorld);
    rank.sync("the first barrier");
    players.barrier();
    if (players.first() == 1) {
      network_of(rank).nic().die();
    } else {
      // A wait has the monitor ask whether its peer is there.
      std::thread late([&] {
        await_path(rank, 1, 1);
        players.word(0) = 1;
      });
      require(device::wait_signal(kThread, rank.view(), 0, 1, 1), "a signal by the backup");
      late.join();
    }
    if (players.first() == 1) {
      while (players.word(0) == 0) std::this_thread::sleep_for(5ms);
      require(device::world_signal(kThread, rank.view(), 0, 0).outcome, "the signal");
    }
    players.barrier();
    require(!rank.comm.async_error(), "no error");
    players.barrier();
  });
}

TEST_CASE("a GPU's queue with a backup path refuses what is posted after an abort", "[req:3.6]") {
  play_gpus_by_paths({{1, 1}}, with_patience(), false,
                     [&](Players& players) { post_after_abort(players, false); });
}

}  // namespace oriel::test
