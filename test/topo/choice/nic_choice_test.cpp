// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
// 2.5 and B3: which network cards GPUs and CPU ranks are given, and what these fall back on.
#include "topo/choice/nic_choice.hpp"

#include <algorithm>
#include <climits>
#include <map>
#include <random>
#include <set>

#include <catch2/catch.hpp>
#include <fmt/format.h>

#include "topo/machine/machines.hpp"

namespace oriel::topo {
namespace {

/// `count` cards of one port each below one host bridge, with a GPU.
Machine cards(int count) {
  MachineBuilder build;
  build.numa(0, {0});
  const int root = build.host_bridge(0);
  build.gpu(root, "0000:01:00.0");
  for (int i = 0; i < count; ++i) {
    const std::string address = "0000:0" + std::to_string(2 + i) + ":00.0";
    build.nic(root, address.c_str(), ("mlx5_" + std::to_string(i)).c_str(), 100,
              static_cast<std::uint64_t>(10 + i));
  }
  return canonical(std::move(build.machine));
}

}  // namespace

TEST_CASE("each GPU gets its nearest NIC, shared ones in balance, and a backup elsewhere",
          "[req:2.5]") {
  const auto hgx = choose_nics(hgx_8());
  CHECK(primaries(hgx) == std::vector<int>{0, 1, 2, 3, 4, 5, 6, 7});
  CHECK(backups(hgx) == std::vector<int>{1, 0, 3, 2, 5, 4, 7, 6});
  CHECK(hgx[0].distance == Distance::one_switch);
  CHECK(hgx[0].reason == "mlx5_0 is one of 2 equally near (PIX); backup mlx5_1, another card");

  const auto shared = choose_nics(one_nic());
  CHECK(primaries(shared) == std::vector<int>{0, 0, 0, 0});
  CHECK(backups(shared) == std::vector<int>{-1, -1, -1, -1});
  CHECK(shared[3].reason ==
        "mlx5_0 is the nearest (SYS), shared with 3 others; no other fault domain to fall back on");

  CHECK(primaries(choose_nics(mig())) == std::vector<int>{0, 0, 0});
  CHECK(choose_nics(mig())[1].reason ==
        "mlx5_0 is the nearest (PHB); no other fault domain to fall back on");
  CHECK(primaries(choose_nics(amd_full_mesh())) == std::vector<int>{0, 1, 2, 3, 4, 5, 6, 7});
  CHECK(choose_nics(workstation())[1] ==
        NicChoice{-1, -1, Distance::unknown, "there is no active NIC"});

  const auto cpu = choose_nics_of_numa_nodes(cpu_only());
  REQUIRE(cpu.size() == 2);
  CHECK(primaries(cpu) == std::vector<int>{0, 1});
  CHECK(backups(cpu) == std::vector<int>{1, 0});
  CHECK(cpu[1].reason ==
        "mlx5_1 is one of 2 equally near (NODE); backup mlx5_0, the other port of its card");
}

TEST_CASE("a GPU with a choice leaves the NIC to one without", "[req:2.5]") {
  MachineBuilder build;
  const int left = build.host_bridge(-1);
  const int right = build.host_bridge(-1);
  for (const char* gpu : {"0000:01:00.0", "0000:02:00.0"}) build.gpu(left, gpu);
  build.nic(left, "0000:03:00.0", "a");
  build.nic(right, "0000:82:00.0", "b");
  build.machine.gpus[0].node = -1;  // nothing says where it is: all NICs are as near
  CHECK(primaries(choose_nics(canonical(build.machine))) == std::vector<int>{1, 0});
  std::swap(build.machine.gpus[0].node, build.machine.gpus[1].node);
  CHECK(primaries(choose_nics(canonical(std::move(build.machine)))) == std::vector<int>{0, 1});
}

TEST_CASE("no NIC is idle while GPUs share another, though several must change for that",
          "[req:2.5]") {
  MachineBuilder build;  // bridges in a row; a GPU is as near to all NICs below its bridge's others
  const int top = build.bridge(build.host_bridge(build.numa(0, {0})), "0000:01:00.0");
  const int upper = build.bridge(top, "0000:02:00.0");
  const int lower = build.bridge(upper, "0000:03:00.0");
  const int inner = build.bridge(lower, "0000:05:00.0");
  build.gpu(inner, "0000:08:00.0");
  build.nic(inner, "0000:09:00.0", "inner");
  build.gpu(lower, "0000:07:00.0");
  build.nic(lower, "0000:0a:00.0", "lower");
  build.gpu(upper, "0000:06:00.0");
  build.nic(top, "0000:0b:00.0", "top");
  const Machine machine = canonical(std::move(build.machine));
  const auto chosen = primaries(choose_nics(machine));
  CHECK(std::set<int>(chosen.begin(), chosen.end()) == std::set<int>{0, 1, 2});
}

namespace {

/// 8 GPUs, each with a NIC of this speed below its own switch, and a card for storage at the second
/// socket.
Machine with_storage_card(double gbps) {
  MachineBuilder build;
  for (int socket = 0; socket < 2; ++socket) {
    const int root = build.host_bridge(build.numa(socket, {socket}));
    for (int i = socket * 4; i < socket * 4 + 4; ++i) {
      const int under = build.bridge(root, fmt::format("0000:{}0:00.0", i + 1).c_str(), 500);
      build.gpu(under, fmt::format("0000:{}1:00.0", i + 1).c_str());
      build.nic(under, fmt::format("0000:{}2:00.0", i + 1).c_str(),
                fmt::format("mlx5_{}", i).c_str(), gbps, static_cast<std::uint64_t>(i + 1));
    }
    if (socket == 0) continue;
    build.nic(root, "0000:f0:00.0", "storage", 400, 99);
    build.machine.nics.back().layer = Nic::Layer::ethernet;
  }
  return canonical(std::move(build.machine));
}

}  // namespace

TEST_CASE("GPUs keep NICs of their own rather than share a faster one far away", "[req:2.5]") {
  const std::vector<int> own{0, 1, 2, 3, 4, 5, 6, 7};
  for (const double gbps : {50.0, 100.0, 200.0}) {
    for (const bool one_layer : {false, true}) {
      Machine machine = with_storage_card(gbps);
      if (one_layer) machine.nics.back().layer = Nic::Layer::infiniband;
      const auto choices = choose_nics(machine);
      CHECK(primaries(choices) == own);
      if (!one_layer) CHECK(backups(choices) == std::vector<int>{1, 0, 3, 2, 5, 4, 7, 6});
    }
  }
  for (const double gbps : {10.0, 49.0}) {  // 400 shared by 8 is more
    for (const bool one_layer : {false, true}) {
      Machine slow = with_storage_card(gbps);
      if (one_layer) slow.nics.back().layer = Nic::Layer::infiniband;
      CHECK(primaries(choose_nics(slow)) == std::vector<int>(8, 8));
      CHECK(primaries(choose_nics_of_numa_nodes(slow)) == std::vector<int>(2, 8));
    }
  }
}

TEST_CASE("all primaries of a machine are of one link layer, and backups of the primary's",
          "[req:2.5]") {
  MachineBuilder build;
  for (int socket = 0; socket < 2; ++socket) {
    const int root = build.host_bridge(build.numa(socket, {socket}));
    const int under = build.bridge(root, fmt::format("0000:{}0:00.0", socket + 1).c_str(), 500);
    for (int i = 1; i < 3; ++i) {
      build.gpu(under, fmt::format("0000:{}{}:00.0", socket + 1, i).c_str());
    }
    if (socket == 0) build.nic(under, "0000:13:00.0", "eth", 100, 1);
    if (socket == 0) build.machine.nics.back().layer = Nic::Layer::ethernet;
    build.nic(under, fmt::format("0000:{}4:00.0", socket + 1).c_str(), "ib", 200,
              static_cast<std::uint64_t>(2 + socket));
  }
  Machine machine = canonical(std::move(build.machine));
  REQUIRE(machine.nics[0].layer == Nic::Layer::ethernet);
  CHECK(primaries(choose_nics(machine)) == std::vector<int>{1, 1, 2, 2});
  CHECK(backups(choose_nics(machine))[0] == 2);
  CHECK(choose_nics(machine)[0].reason ==
        "ib is the nearest of the link layer that all use (PIX), shared with 1 other; backup ib, "
        "another card");
  CHECK(primaries(choose_nics_of_numa_nodes(machine)) == std::vector<int>{1, 2});
  // Also where the other layer is nearer to some.
  machine.nics[1].active = false;
  CHECK(primaries(choose_nics(machine)) == std::vector<int>{2, 2, 2, 2});
  CHECK(choose_nics(machine)[0].reason ==
        "ib is the nearest of the link layer that all use (SYS), shared with 3 others; backup "
        "eth, another card");
  machine.nics[2].gbps = 10;  // 2.5 for each, instead of 50 and 5
  CHECK(primaries(choose_nics(machine)) == std::vector<int>{0, 0, 0, 0});
  // CPU ranks of the second node would take the card for storage that nobody has taken.
  CHECK(primaries(choose_nics_of_numa_nodes(with_storage_card(200))) == std::vector<int>{0, 4});

  MachineBuilder ports;  // each card with a fast port of InfiniBand and a slow one of Ethernet
  const int root = ports.host_bridge(ports.numa(0, {0}));
  for (int card = 1; card < 3; ++card) {
    const int under = ports.bridge(root, fmt::format("0000:{}0:00.0", card).c_str(), 500);
    ports.gpu(under, fmt::format("0000:{}1:00.0", card).c_str());
    ports.nic(under, fmt::format("0000:{}2:00.0", card).c_str(), "ib", 200, 0);
    ports.nic(under, fmt::format("0000:{}2:00.1", card).c_str(), "eth", 25, 0);
    ports.machine.nics.back().layer = Nic::Layer::ethernet;
  }
  const auto choices = choose_nics(canonical(std::move(ports.machine)));
  CHECK(primaries(choices) == std::vector<int>{0, 2});
  CHECK(backups(choices) == std::vector<int>{2, 0});
}

TEST_CASE("a NIC several times slower than the fastest is used where nothing else is there",
          "[req:2.5]") {
  const auto machine_with = [](double other_gbps) {
    MachineBuilder build;
    const int root = build.host_bridge(build.numa(0, {0}));
    build.gpu(root, "0000:10:00.0");
    build.gpu(root, "0000:18:00.0");
    build.nic(root, "0000:20:00.0", "mlx5_0", 400, 1);
    build.nic(root, "0000:28:00.0", "mlx5_mgmt", other_gbps, 2);
    build.machine.nics.back().layer = Nic::Layer::ethernet;
    return canonical(std::move(build.machine));
  };
  Machine machine = machine_with(10);
  CHECK(primaries(choose_nics(machine)) == std::vector<int>{0, 0});
  CHECK(backups(choose_nics(machine)) == std::vector<int>{1, 1});  // better than none
  CHECK(choose_nics(machine)[0].reason ==
        "mlx5_0 is the nearest of those fast enough (PHB), shared with 1 other; backup mlx5_mgmt, "
        "another card");
  CHECK(primaries(choose_nics_of_numa_nodes(machine)) == std::vector<int>{0});
  CHECK(choose_nic_at(machine, {-1, 0}, 1).primary == 0);
  // Ports of two link layers cannot talk to each other: one for all, though that is shared.
  CHECK(primaries(choose_nics(machine_with(200))) == std::vector<int>{0, 0});
  for (const double gbps : {200.0, 0.0}) {  // a speed that is not known counts as slow
    Machine one_layer = machine_with(gbps);
    one_layer.nics[1].layer = Nic::Layer::infiniband;
    CHECK(primaries(choose_nics(one_layer)) == std::vector<int>{0, gbps > 0 ? 1 : 0});
  }
  machine.nics[0].active = false;
  CHECK(primaries(choose_nics(machine)) == std::vector<int>{1, 1});

  MachineBuilder far;
  far.gpu(far.host_bridge(far.numa(0, {0})), "0000:10:00.0");
  far.nic(0, "0000:11:00.0", "mlx5_mgmt", 10, 1);
  far.nic(far.host_bridge(far.numa(1, {1})), "0000:90:00.0", "mlx5_0", 400, 2);
  const auto choices = choose_nics(canonical(std::move(far.machine)));
  CHECK(choices[0].primary == 1);
  CHECK(choices[0].reason ==
        "mlx5_0 is the nearest of those fast enough (SYS); backup mlx5_mgmt, another card");
}

TEST_CASE("cards are paired near each other, and only what is left over farther away", "[B3]") {
  // Sockets with so many cards, and the pairs.
  const std::vector<std::pair<std::vector<int>, std::vector<int>>> table = {
      {{3, 3}, {1, 0, 5, 4, 3, 2}},
      {{1, 2, 1}, {3, 2, 1, 0}},
      {{1, 1, 2, 1}, {1, 0, 3, 2, 0}},
      {{5, 2}, {1, 0, 3, 2, 0, 6, 5}}};
  for (const auto& [sockets, expected] : table) {
    MachineBuilder build;
    int bus = 0;
    for (std::size_t socket = 0; socket < sockets.size(); ++socket) {
      const int root =
          build.host_bridge(build.numa(static_cast<int>(socket), {static_cast<int>(socket)}));
      for (int card = 0; card < sockets[socket]; ++card) {
        ++bus;
        build.nic(root, fmt::format("0000:{:02x}:00.0", bus).c_str(),
                  fmt::format("mlx5_{}", bus).c_str(), 400, static_cast<std::uint64_t>(bus));
      }
    }
    CHECK(backup_nics(canonical(std::move(build.machine))) == expected);
  }

  MachineBuilder build;  // under one host bridge two switches, whose cards alternate by address
  const int root = build.host_bridge(build.numa(0, {0}));
  const int left = build.bridge(root, "0000:01:00.0", 500);
  const int right = build.bridge(root, "0000:01:01.0", 500);
  for (int card = 0; card < 4; ++card) {
    build.nic(card % 2 == 0 ? left : right, fmt::format("0000:{:02x}:00.0", 2 + card).c_str(),
              fmt::format("mlx5_{}", card).c_str(), 400, static_cast<std::uint64_t>(card + 1));
  }
  CHECK(backup_nics(canonical(build.machine)) == std::vector<int>{2, 3, 0, 1});
  for (const int ethernet : {0, 2}) {
    build.machine.nics[static_cast<std::size_t>(ethernet)].layer = Nic::Layer::ethernet;
  }
  CHECK(backup_nics(canonical(build.machine)) == std::vector<int>{2, 3, 0, 1});
  build.machine.nics[3].layer = Nic::Layer::ethernet;
  // The last of an odd number takes the nearest of its layer; who has none there, of another.
  CHECK(backup_nics(canonical(build.machine)) == std::vector<int>{2, 3, 0, 0});
}

TEST_CASE("backups for 1, 2, 3 and 8 NICs, dual ports and dead ones", "[B3]") {
  CHECK(backup_nics(cards(1)) == std::vector<int>{-1});
  CHECK(backup_nics(cards(2)) == std::vector<int>{1, 0});
  CHECK(backup_nics(cards(3)) == std::vector<int>{1, 0, 0});
  CHECK(backup_nics(cards(8)) == std::vector<int>{1, 0, 3, 2, 5, 4, 7, 6});

  Machine dead = cards(3);
  dead.nics[1].active = false;
  CHECK(backup_nics(dead) == std::vector<int>{2, -1, 0});
  CHECK(primaries(choose_nics(dead)) == std::vector<int>{0});

  Machine dual = cards(4);
  dual.nics[0].card = dual.nics[1].card = 77;
  CHECK(backup_nics(dual) == std::vector<int>{1, 0, 3, 2});
  dual.nics[1].active = false;  // its other port takes the nearest, and 2 and 3 stay a pair
  CHECK(backup_nics(dual) == std::vector<int>{2, -1, 3, 2});

  Machine virtual_function = cards(2);
  virtual_function.nics[1].guid = virtual_function.nics[0].guid;
  virtual_function.nics[1].card = virtual_function.nics[0].card;
  CHECK(backup_nics(virtual_function) == std::vector<int>{-1, -1});
}

TEST_CASE("a card that shows itself on two buses is one card by its number", "[req:2.5]") {
  Machine machine = cards(4);
  machine.nics[0].card = machine.nics[2].card = 77;
  CHECK(same_card(machine.nics[0], machine.nics[2]));
  CHECK_FALSE(same_card(machine.nics[0], machine.nics[1]));
  CHECK(backup_nics(machine) == std::vector<int>{2, 3, 0, 1});
  // And two numbers are two cards, though they stand in one slot.
  machine.nics[1].pci = machine.nics[3].pci;
  CHECK_FALSE(same_card(machine.nics[1], machine.nics[3]));
}

TEST_CASE("where PCI tells no more, the NUMA nodes' own distances decide", "[req:2.5]") {
  MachineBuilder build;
  for (int node = 0; node < 4; ++node) build.numa(node, {node});
  build.machine.numa[0].distances = {10, 32, 12, 21};
  build.machine.numa[1].distances = {32, 10, 21, 12};
  build.machine.numa[2].distances = {12, 21, 10, 32};
  build.machine.numa[3].distances = {21, 12, 32, 10};
  build.gpu(build.host_bridge(0), "0000:10:00.0");
  build.nic(build.host_bridge(1), "0000:40:00.0", "far", 400, 1);
  build.nic(build.host_bridge(2), "0000:80:00.0", "near", 400, 2);
  build.nic(build.host_bridge(3), "0000:c0:00.0", "between", 400, 3);
  const Machine machine = canonical(std::move(build.machine));
  REQUIRE(machine.nics[1].name == "near");
  const auto choices = choose_nics(machine);
  CHECK(choices[0].primary == 1);
  CHECK(choices[0].distance == Distance::system);
  CHECK(choices[0].reason.starts_with("near is the nearest (SYS)"));
}

TEST_CASE("ports that die leave the pairs of others as they were", "[B3]") {
  constexpr int kPorts = 8;
  for (const bool dual : {false, true}) {
    Machine machine = cards(kPorts);
    for (int i = 0; dual && i < kPorts; ++i) {
      machine.nics[static_cast<std::size_t>(i)].card = 100 + static_cast<std::uint64_t>(i / 2);
    }
    for (unsigned dead = 0; dead < 1U << kPorts; ++dead) {
      INFO("dead: " << dead << (dual ? ", cards with two ports" : ", cards with one port"));
      const auto is_dead = [&](int port) { return (dead >> port & 1) != 0; };
      for (int i = 0; i < kPorts; ++i) {
        machine.nics[static_cast<std::size_t>(i)].active = !is_dead(i);
      }
      const auto backups_of = backup_nics(machine);
      std::vector<int> taken(kPorts, 0);
      int left = 0;
      for (int i = 0; i < kPorts; ++i) {
        const int backup = backups_of[static_cast<std::size_t>(i)];
        if (is_dead(i)) {
          REQUIRE(backup == -1);
          continue;
        }
        if (!is_dead(i ^ 1)) REQUIRE(backup == (i ^ 1));
        if (is_dead(i ^ 1)) ++left;
        REQUIRE((backup >= 0) == ((dead | 1U << i) != (1U << kPorts) - 1));
        if (backup < 0) continue;
        REQUIRE(backup != i);
        REQUIRE_FALSE(is_dead(backup));
        ++taken[static_cast<std::size_t>(backup)];
      }
      // Those whose partners are dead share what is there: all are as near.
      const int most = *std::max_element(taken.begin(), taken.end());
      REQUIRE(most <= (left % 2 == 0 ? 1 : 2));
    }
  }
}

namespace {

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

TEST_CASE("cards with one and two ports at random: balance, fault domains, and any order", "[B3]") {
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
    std::map<PciAddress, int> users;  // of each port that is up
    std::map<std::uint64_t, std::set<PciAddress>> cards;
    for (int i = 0; i < static_cast<int>(machine.nics.size()); ++i) {
      if (!nic(i).active) continue;
      users[port_of(i)] = 0;
      cards[nic(i).card].insert(port_of(i));
    }
    const auto backups_of = backup_nics(machine);
    int without_partner = 0;
    for (int i = 0; i < static_cast<int>(machine.nics.size()); ++i) {
      const int backup = backups_of[static_cast<std::size_t>(i)];
      REQUIRE((backup >= 0) == (nic(i).active && users.size() > 1));
      if (backup < 0) continue;
      REQUIRE(nic(backup).active);
      REQUIRE(port_of(backup) != port_of(i));
      REQUIRE((nic(backup).card == nic(i).card) == (cards[nic(i).card].size() == 2));
      const int back = backups_of[static_cast<std::size_t>(backup)];
      if (!nic(i).physical && port_of(back) != port_of(i)) ++without_partner;
    }
    REQUIRE(without_partner <= 1);  // of an odd number the last
    const auto choices = choose_nics(machine);
    for (const NicChoice& choice : choices) {
      REQUIRE((choice.primary >= 0) == !users.empty());
      if (choice.primary < 0) continue;
      REQUIRE_FALSE(nic(choice.primary).physical);  // of the functions of a port the physical one
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
    REQUIRE(backup_nics(other) == backups_of);
  }
}

TEST_CASE("devices that share a port through a third one are no backup of each other", "[B3]") {
  for (int third = 0; third < 3; ++third) {
    Machine machine = cards(3);
    const auto nic = [&](int i) -> Nic& {
      return machine.nics[static_cast<std::size_t>((third + i) % 3)];
    };
    nic(0).guid = nic(1).guid;  // this one is the first's twin, and a function of the second
    nic(0).physical = nic(2).pci;
    CHECK(backup_nics(machine) == std::vector<int>{-1, -1, -1});
    nic(0).active = false;
    const auto backups_of = backup_nics(machine);
    CHECK(std::count(backups_of.begin(), backups_of.end(), -1) == 3);
  }
}

}  // namespace oriel::topo
