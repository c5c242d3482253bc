// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <chrono>
#include <optional>
#include <string>
#include <thread>

#include <catch2/catch.hpp>

#include "comm/communicator/collective_sums.hpp"
#include "comm/network/network_soft.hpp"
#include "comm/support/network_players.hpp"
#include "support/fabric_provider_name.hpp"
#include "support/sanitized.hpp"

/// Windows that are deregistered once collectives have ended, though answers to what these have
/// sent from there were lost (3.10 F4, 3.16).
namespace oriel::test {
namespace {

using namespace std::chrono_literals;

constexpr std::size_t kCount = 8 * 1024;  // f32 of each rank
const std::string kTimeout = kSanitized ? "18s" : "9s";

comm::SoftNetwork& network_of(const Rank& rank) {
  return *static_cast<comm::SoftNetwork*>(rank.view().network->nic);
}

/// Rank 1 does what it is asked for and loses its answers. Both ranks have their results, and
/// deregister.
void deregister_unanswered(Variables settings) {
  settings.push_back({"ORIEL_COLLECTIVE_TIMEOUT", kTimeout});
  check_all_ok(play(Cast::processes, 2, [&](Players& players) {
    const Environment common(settings), node(on_node({{1, 1}}, players.first()));
    Rank rank(players, 4096, kWorld);
    collect(rank.comm, 100);
    auto memory = must(rank.comm.allocate(4 * kCount * sizeof(float)));
    auto* const values = static_cast<float*>(memory.data());
    {
      std::optional<Window> window(must(rank.comm.register_window(memory)));
      std::fill(values, values + kCount, static_cast<float>(players.first() + 1));
      players.barrier();
      std::this_thread::sleep_for(100ms);  // what is on its way has its answer
      const std::uint64_t repeated = network_of(rank).nic().counters().repeated;
      if (players.first() == 1) {
        net::NicFaults faults;
        faults.lost_responses = {{0, 1, ~std::uint64_t{0}}};
        network_of(rank).nic().set_faults(std::move(faults));
      }
      players.barrier();
      must(rank.comm.all_gather({.input = values, .output = values + kCount, .count = kCount}));
      players.barrier();  // the call has ended on both ranks
      const auto begin = std::chrono::steady_clock::now();
      window.reset();
      require(std::chrono::steady_clock::now() - begin < 2s, "that nobody waits for answers");
      players.barrier();
      // Long enough for a repetition, and with two paths for the other one to be taken.
      const auto* const failover = network_of(rank).failover(1 - players.first());
      const auto is_repeated = [&] {
        return failover != nullptr ? failover->sight().epoch > 1
                                   : network_of(rank).nic().counters().repeated > repeated;
      };
      for (int i = 0; i < 1000 && players.first() == 0 && !is_repeated(); ++i) {
        std::this_thread::sleep_for(10ms);
      }
      if (players.first() == 0) require(is_repeated(), "something that had no answer");
      players.barrier();
      if (players.first() == 1) network_of(rank).nic().set_faults({});
    }
    for (std::size_t i = 0; i < kCount; ++i) {
      require(values[kCount + i] == 1 && values[2 * kCount + i] == 2, "the result");
    }
    collect(rank.comm, 100);
    rank.sync("a barrier");
    const auto error = rank.comm.async_error();
    require(!error, error ? error->to_string() : "");
    players.barrier();
  }));
}

/// Rank 1 deregisters a window to which rank 0 goes on writing, and stays.
void write_to_deregistered(const Variables& settings) {
  check_all_ok(play(Cast::processes, 3, [&](Players& players) {
    const Environment common(settings), node(on_node({{1, 1, 1}}, players.first()));
    Rank rank(players, 4096, kWorld);
    auto memory = must(rank.comm.allocate(4096));
    std::optional<Window> window(must(rank.comm.register_window(memory)));
    const auto put = [&] {
      const auto view = window->view();
      return device::world_put(device::Thread(), rank.view(), 1, view, 0, view, 64, 64).outcome;
    };
    if (players.first() == 0) {
      require(put(), "a put");
      require(device::world_flush(device::Thread(), rank.view()), "its end");
    }
    players.barrier();
    if (players.first() == 1) window.reset();
    players.barrier();
    if (players.first() == 0) require(put(), "another one is posted");
    const auto error = error_of(rank.comm);
    require(error.has_value(), "an error");
    require(error->origin_rank() == 1, error->to_string());
    require(error->to_string().find("deregistered") != std::string::npos, error->to_string());
    players.barrier();
  }));
}

Variables by_fabric(const Variables& more) {
  Variables settings = {{"ORIEL_FABRIC_PROVIDER", fabric_provider()},
                        {"ORIEL_SOCKET_IFNAME", "lo"},
                        {"ORIEL_WIRE", "fabric"}};
  settings.insert(settings.end(), more.begin(), more.end());
  return settings;
}

bool has_fabric() {
  const auto wire =
      net::WireFabric::create({.provider = fabric_provider(), .socket = {.ifname = "lo"}});
  if (!wire.ok()) WARN("no fabric: " << wire.error().to_string());
  return wire.ok();
}

}  // namespace

TEST_CASE("a window is deregistered while answers on a ring are lost", "[req:3.16][F4]") {
  deregister_unanswered({{"ORIEL_DIRECT_COPY", "0"}, {"ORIEL_CHUNK", "4096"}});
}

TEST_CASE("a window is deregistered while answers of libfabric's are lost", "[req:3.16][F4]") {
  if (has_fabric()) deregister_unanswered(by_fabric({{"ORIEL_CHUNK", "4096"}}));
}

TEST_CASE("a window is deregistered, and its puts are replayed by another path", "[req:3.16][F4]") {
  if (has_fabric()) {
    deregister_unanswered(by_fabric({{"ORIEL_CHUNK", "4096"}, {"ORIEL_PATHS", "lo,lo"}}));
  }
}

TEST_CASE("who deregisters a window that others still use is named by all, over rings",
          "[req:3.19]") {
  write_to_deregistered({{"ORIEL_DIRECT_COPY", "0"}});
}

TEST_CASE("who deregisters a window that others still use is named by all, by libfabric",
          "[req:3.19]") {
  if (has_fabric()) write_to_deregistered(by_fabric({}));
}

TEST_CASE("who deregisters a window that others still use is named by all, by two paths",
          "[req:3.19]") {
  if (has_fabric()) write_to_deregistered(by_fabric({{"ORIEL_PATHS", "lo,lo"}}));
}

}  // namespace oriel::test
