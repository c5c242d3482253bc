// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
// Tests random NICs: even sharing, fault domains, one port for each device.
#include <algorithm>
#include <climits>
#include <functional>
#include <map>
#include <random>
#include <set>

#include <catch2/catch.hpp>
#include <fmt/format.h>

#include "topo/choice/nic_choice.hpp"
#include "topo/machine/machines.hpp"

namespace oriel::topo {
namespace {

std::string address_on_bus(int bus) {
  return fmt::format("0000:{:02x}:00.0", bus);
}

/// Puts each GPU and each NIC at a NUMA node of its own, with random distances. Hence any set of
/// NICs may be the nearest of a GPU.
Machine random_places(std::mt19937& random, const std::vector<double>& speeds) {
  MachineBuilder build;
  const int gpus = 1 + static_cast<int>(random() % 6);
  const int nics = 1 + static_cast<int>(random() % 6);
  for (int node = 0; node < gpus + nics; ++node) {
    build.numa(node, {node});
    const int root = build.host_bridge(node);
    if (node < gpus) {
      build.gpu(root, address_on_bus(node + 1).c_str());
    } else {
      build.nic(root, address_on_bus(node + 1).c_str(), fmt::format("mlx5_{}", node).c_str(),
                speeds[random() % speeds.size()]);
    }
  }
  for (int a = 0; a < gpus + nics; ++a) {
    for (int b = 0; b < gpus + nics; ++b) {
      auto& row = build.machine.numa[static_cast<std::size_t>(a)].distances;
      row.push_back(a == b ? 10 : random() % 2 == 0 ? 12 : 21);
    }
  }
  return canonical(std::move(build.machine));
}

using Sets = std::vector<std::vector<int>>;

/// Returns the nearest NICs of each GPU.
Sets nearest(const Machine& machine) {
  Sets sets;
  for (const Gpu& gpu : machine.gpus) {
    const auto cost = [&](const Nic& nic) { return nic_cost(machine, place_of(gpu), nic); };
    const auto least =
        std::min_element(machine.nics.begin(), machine.nics.end(),
                         [&](const Nic& a, const Nic& b) { return cost(a) < cost(b); });
    sets.emplace_back();
    for (std::size_t nic = 0; nic < machine.nics.size(); ++nic) {
      if (cost(machine.nics[nic]) == cost(*least)) sets.back().push_back(static_cast<int>(nic));
    }
  }
  return sets;
}

/// Returns the highest worth of all assignments of one NIC to each GPU, by trying each.
template <typename Worth>
double best_of_all(const Sets& sets, const Worth& worth) {
  std::vector<int> chosen(sets.size(), -1);
  double best = -1e9;
  const std::function<void(std::size_t)> next = [&](std::size_t gpu) {
    if (gpu == sets.size()) {
      best = std::max(best, worth(chosen));
      return;
    }
    for (const int nic : sets[gpu]) {
      chosen[gpu] = nic;
      next(gpu + 1);
    }
  };
  next(0);
  return best;
}

/// Cards with one or two ports below one host bridge, some ports down, some with virtual functions.
Machine random_cards(std::mt19937& random) {
  MachineBuilder build;
  build.numa(0, {0});
  const int root = build.host_bridge(0);
  const auto gpus = 1 + random() % 9;
  for (unsigned i = 0; i < gpus; ++i)
    build.gpu(root, fmt::format("0000:{:02x}:00.0", 1 + i).c_str());
  const auto count = 1 + random() % 6;
  int number = 0;
  for (unsigned card = 0; card < count; ++card) {
    const auto ports = 1 + random() % 2;
    for (unsigned port = 0; port < ports; ++port) {
      const std::string physical = fmt::format("0000:{:02x}:00.{}", 0x20 + card, port);
      const auto functions = random() % 3 == 0 ? random() % 3 : 0U;
      const bool active = random() % 6 > 0;
      for (unsigned function = 0; function <= functions; ++function) {
        const std::string address =
            function == 0 ? physical
                          : fmt::format("0000:{:02x}:{:02x}.{}", 0x20 + card, 1 + function, port);
        build.nic(root, address.c_str(), fmt::format("mlx5_{}", number++).c_str(), 400, 100 + card);
        build.machine.nics.back().active = active;
        if (function > 0) build.machine.nics.back().physical = parse_pci_address(physical).value();
      }
    }
  }
  return canonical(std::move(build.machine));
}

}  // namespace

TEST_CASE("GPUs share equally near NICs as evenly as can be, at random", "[req:2.5]") {
  const auto seed = std::random_device{}();
  INFO("seed " << seed);
  std::mt19937 random(seed);
  int shared = 0;
  for (int round = 0; round < 400; ++round) {
    INFO("round " << round);
    const bool one_speed = round % 2 == 0;
    const Machine machine = random_places(
        random, one_speed ? std::vector<double>{400} : std::vector<double>{100, 150, 200, 400});
    const auto users_of = [](const std::vector<int>& chosen, int nic) {
      return static_cast<double>(std::count(chosen.begin(), chosen.end(), nic));
    };
    // If all NICs have one speed, the most even assignment has the least sum of squared user
    // counts.
    const auto evenness = [&](const std::vector<int>& chosen) {
      double sum = 0;
      for (const int nic : chosen) sum -= users_of(chosen, nic);
      return sum;
    };
    const auto least_share = [&](const std::vector<int>& chosen) {
      double least = 1e9;
      for (const int nic : chosen) {
        const double gbps = machine.nics[static_cast<std::size_t>(nic)].gbps;
        least = std::min(least, gbps / users_of(chosen, nic));
      }
      return least;
    };
    const Sets sets = nearest(machine);
    const auto choices = choose_nics(machine);
    const auto chosen = primaries(choices);
    for (std::size_t gpu = 0; gpu < sets.size(); ++gpu) {
      REQUIRE(std::count(sets[gpu].begin(), sets[gpu].end(), chosen[gpu]) == 1);
    }
    REQUIRE(least_share(chosen) == Approx(best_of_all(sets, least_share)));
    if (one_speed) REQUIRE(evenness(chosen) == best_of_all(sets, evenness));
    if (std::set<int>(chosen.begin(), chosen.end()).size() < chosen.size()) ++shared;
    REQUIRE(choose_nics(canonical(shuffled(machine, static_cast<unsigned>(random())))) == choices);
  }
  CHECK(shared > 20);
}

TEST_CASE("on random cards primaries are balanced, backups on other ports, in any order of NICs",
          "[req:2.5][B3]") {
  const auto seed = std::random_device{}();
  INFO("seed " << seed);
  std::mt19937 random(seed);
  for (int round = 0; round < 300; ++round) {
    INFO("round " << round);
    const Machine machine = random_cards(random);
    const auto nic = [&](int index) { return machine.nics[static_cast<std::size_t>(index)]; };
    const auto port_of = [&](int index) {
      return *(nic(index).physical ? nic(index).physical : nic(index).pci);
    };
    std::map<PciAddress, int> users;  // users per port that is up
    std::map<std::uint64_t, std::set<PciAddress>> cards;
    for (int i = 0; i < static_cast<int>(machine.nics.size()); ++i) {
      if (!nic(i).active) continue;
      users[port_of(i)] = 0;
      cards[nic(i).card].insert(port_of(i));
    }
    const auto partners = partners_by_place(machine);
    for (int i = 0; i < static_cast<int>(machine.nics.size()); ++i) {
      const int partner = partners[static_cast<std::size_t>(i)];
      if (partner < 0) continue;
      REQUIRE(nic(partner).active);
      REQUIRE(port_of(partner) != port_of(i));
      REQUIRE(partners[static_cast<std::size_t>(partner)] == i);
      REQUIRE((nic(partner).card == nic(i).card) == (cards[nic(i).card].size() == 2));
    }
    const auto choices = choose_nics(machine);
    for (const NicChoice& choice : choices) {
      REQUIRE((choice.primary >= 0) == !users.empty());
      if (choice.primary < 0) continue;
      REQUIRE_FALSE(nic(choice.primary).physical);  // a port's physical function
      REQUIRE((choice.backup >= 0) == (users.size() > 1));
      if (choice.backup >= 0) REQUIRE(port_of(choice.backup) != port_of(choice.primary));
      ++users[port_of(choice.primary)];
    }
    int least = INT_MAX;
    int most = 0;
    for (const auto& [port, count] : users) {
      least = std::min(least, count);
      most = std::max(most, count);
    }
    if (!users.empty()) REQUIRE(most - least <= 1);
    const Machine other = canonical(shuffled(machine, static_cast<unsigned>(random())));
    REQUIRE(choose_nics(other) == choices);
  }
}

TEST_CASE("a port has one speed, whatever its functions report", "[req:2.5]") {
  Machine machine = one_nic();
  Nic& first = machine.nics.front();
  first.guid = 7;
  first.gbps = 10;
  machine.nics.push_back(first);
  machine.nics.back().gbps = 400;
  const PortSpeeds speeds(machine);
  CHECK(speeds.port_of(1) == 0);
  CHECK(speeds.gbps(1) == 10);
  CHECK(speeds.fastest() == 10);
  for (const NicChoice& choice : choose_nics(machine)) CHECK(choice.primary == 0);
  machine.nics.front().gbps = 0;
  CHECK(PortSpeeds(machine).gbps(0) == 400);
}

TEST_CASE("devices that share a port through a third one are no backup of each other", "[B3]") {
  for (std::size_t third = 0; third < 3; ++third) {
    Machine machine = machine_of("n( g ib400#11 ib400#12 ib400#13 )");
    const auto nic = [&](std::size_t i) -> Nic& { return machine.nics[(third + i) % 3]; };
    nic(0).guid = nic(1).guid;  // the twin of NIC 1 by guid, and a function of NIC 2's port
    nic(0).physical = nic(2).pci;
    CHECK(partners_by_place(machine) == std::vector<int>{-1, -1, -1});
    CHECK(choose_nics(machine)[0].backup == -1);
    nic(0).active = false;
    CHECK(choose_nics(machine)[0].backup == -1);
  }
}

}  // namespace oriel::topo
