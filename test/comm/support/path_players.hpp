// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>

#include "comm/communicator/rank_communicator.hpp"
#include "comm/group/comm_entry.hpp"
#include "comm/network/network_soft.hpp"
#include "comm/support/network_players.hpp"
#include "support/fabric_provider_name.hpp"
#include "support/sanitized.hpp"

/// Ranks that reach each other by two paths, of which the first fails (3.14). Both go over the
/// loopback: it is the NICs that fail here.
namespace oriel::test {

/// Ends the program as skipped where libfabric has no tcp.
inline bool skip_without_fabric() {
  const auto wire =
      net::WireFabric::create({.provider = fabric_provider(), .socket = {.ifname = "lo"}});
  if (wire.ok()) return true;
  std::printf("skipped: %s\n", wire.error().to_string().c_str());
  std::fflush(stdout);
  std::_Exit(77);
}

/// A path has failed when it is silent for 1.2 s (twice that with sanitizers), and is tried again a
/// second later.
inline const Variables kTwoPaths = {{"ORIEL_FABRIC_PROVIDER", fabric_provider()},
                                    {"ORIEL_SOCKET_IFNAME", "lo"},
                                    {"ORIEL_WIRE", "fabric"},
                                    {"ORIEL_PATHS", "lo,lo"},
                                    {"ORIEL_COLLECTIVE_TIMEOUT", kSanitized ? "18s" : "9s"}};

/// Where nothing is found out by silence: a machine that has much else to do is silent too.
inline Variables with_patience() {
  Variables settings = kTwoPaths;
  settings.push_back({"ORIEL_COLLECTIVE_TIMEOUT", "off"});
  return settings;
}

inline comm::SoftNetwork& network_of(const Rank& rank) {
  const auto found = must(comm::find_communicator(rank.comm.handle()));
  return dynamic_cast<comm::SoftNetwork&>(*found->network());
}

inline net::FailoverQueue::Sight sight_of(const Rank& rank, int peer) {
  const net::FailoverQueue* const queue = network_of(rank).failover(peer);
  require(queue != nullptr, "a queue with a backup");
  return queue->sight();
}

inline void await_path(const Rank& rank, int peer, int path) {
  using namespace std::chrono_literals;
  const auto is_there = [&] {
    const auto sight = sight_of(rank, peer);
    return sight.path == path && sight.stage == net::PathStage::running;
  };
  for (int i = 0; i < 2000 && !is_there(); ++i) std::this_thread::sleep_for(10ms);
  require(is_there(), "the queue goes by path " + std::to_string(path));
}

inline net::NicFaults fail_at(std::uint64_t index, bool after_delivery) {
  net::NicFaults faults;
  faults.fails = {{{0, index}, net::Syndrome::transport_retry, after_delivery}};
  return faults;
}

}  // namespace oriel::test
