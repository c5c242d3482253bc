// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
// 2.5: the link layer that all ranks of a machine use, and that each rank gets a port of it.
#include "topo/choice/nic_layer.hpp"

#include <algorithm>
#include <random>

#include <catch2/catch.hpp>
#include <fmt/format.h>

#include "topo/choice/nic_choice.hpp"
#include "topo/machine/machines.hpp"

namespace oriel::topo {
namespace {

Nic::Layer layer_of(const Machine& machine) {
  return layer_for_all(machine, PortSpeeds(machine));
}

/// 4 GPUs below switches at two sockets, the first `infiniband` of them with a port of their own
/// there, and two-port Ethernet cards for storage at the second socket; all of 200.
Machine with_storage_cards(int infiniband, int ethernet_ports) {
  MachineBuilder build;
  for (int socket = 0; socket < 2; ++socket) {
    const int root = build.host_bridge(build.numa(socket, {socket}));
    for (int i = socket * 2; i < socket * 2 + 2; ++i) {
      const int under = build.bridge(root, fmt::format("0000:{}0:00.0", i + 1).c_str(), 500);
      build.gpu(under, fmt::format("0000:{}1:00.0", i + 1).c_str());
      if (i >= infiniband) continue;
      build.nic(under, fmt::format("0000:{}2:00.0", i + 1).c_str(), fmt::format("ib{}", i).c_str(),
                200, static_cast<std::uint64_t>(i + 1));
    }
    for (int port = 0; port < ethernet_ports * socket; ++port) {
      build.nic(root, fmt::format("0000:f{}:00.{}", port / 2, port % 2).c_str(),
                fmt::format("eth{}", port).c_str(), 200, 50 + static_cast<std::uint64_t>(port / 2));
      build.machine.nics.back().layer = Nic::Layer::ethernet;
    }
  }
  return canonical(std::move(build.machine));
}

Nic& named(Machine& machine, const std::string& name) {
  return *std::find_if(machine.nics.begin(), machine.nics.end(),
                       [&](const Nic& nic) { return nic.name == name; });
}

/// One GPU, and cards as near to it.
class Level {
 public:
  Level() { build_.gpu(root_, "0000:01:00.0"); }
  void add(Nic::Layer layer, double gbps, bool active = true) {
    const int bus = 0x10 + static_cast<int>(build_.machine.nics.size());
    build_.nic(root_, fmt::format("0000:{:02x}:00.0", bus).c_str(), "nic", gbps);
    build_.machine.nics.back().layer = layer;
    build_.machine.nics.back().active = active;
  }
  Nic::Layer layer() const { return layer_of(canonical(build_.machine)); }

 private:
  MachineBuilder build_;
  int root_ = build_.host_bridge(build_.numa(0, {0}));
};

}  // namespace

TEST_CASE("faster cards far away leave GPUs the link layer that is near to more of them",
          "[req:2.5]") {
  for (int dead = -1; dead < 4; ++dead) {
    Machine machine = with_storage_cards(4, 4);
    if (dead >= 0) named(machine, fmt::format("ib{}", dead)).active = false;
    CHECK(layer_of(machine) == Nic::Layer::infiniband);
    const auto choices = choose_nics(machine);
    for (int gpu = 0; gpu < 4; ++gpu) {
      const NicChoice& choice = choices[static_cast<std::size_t>(gpu)];
      const std::string& name = machine.nics[static_cast<std::size_t>(choice.primary)].name;
      CHECK(name.starts_with("ib"));
      if (gpu != dead) CHECK(name == fmt::format("ib{}", gpu));
    }
    for (const NicChoice& choice : choose_nics_of_numa_nodes(machine)) {
      CHECK(machine.nics[static_cast<std::size_t>(choice.primary)].name.starts_with("ib"));
    }
  }
  // What says of its speed less than there is, being dead, is not slow for that.
  Machine machine = with_storage_cards(4, 4);
  for (int port = 0; port < 3; ++port) {
    Nic& nic = named(machine, fmt::format("ib{}", port));
    nic.active = false;
    nic.gbps = 10;
  }
  CHECK(layer_of(machine) == Nic::Layer::infiniband);
  named(machine, "ib3").active = false;
  CHECK(layer_of(machine) == Nic::Layer::ethernet);
  // With 2 GPUs that have nothing near, which at the second socket are nearer to Ethernet.
  CHECK(layer_of(with_storage_cards(2, 4)) == Nic::Layer::infiniband);
}

TEST_CASE("of layers that are near to as many, speed decides, and no port that dies", "[req:2.5]") {
  constexpr auto kInfiniband = Nic::Layer::infiniband;
  constexpr auto kEthernet = Nic::Layer::ethernet;
  for (const bool alive : {true, false}) {
    Level level;
    level.add(kInfiniband, 200);
    level.add(kInfiniband, alive ? 200 : 10, alive);
    level.add(kEthernet, 300);
    CHECK(level.layer() == kInfiniband);
    level.add(kEthernet, 150);
    CHECK(level.layer() == kEthernet);
  }
  Level uncabled;  // most ports of a layer
  uncabled.add(kInfiniband, 200);
  uncabled.add(kEthernet, 200);
  for (int i = 0; i < 2; ++i) uncabled.add(kEthernet, 200, false);
  CHECK(uncabled.layer() == kInfiniband);
  uncabled.add(kEthernet, 200);
  CHECK(uncabled.layer() == kEthernet);

  Level unknown;  // speeds
  unknown.add(kEthernet, 25);
  for (int i = 0; i < 3; ++i) unknown.add(Nic::Layer::other, 0);
  CHECK(unknown.layer() == kEthernet);
  unknown.add(kInfiniband, 25);
  CHECK(unknown.layer() == kInfiniband);
}

TEST_CASE("a port has one speed, and one of a machine's is always used", "[req:2.5]") {
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

  const auto seed = std::random_device{}();
  INFO("seed " << seed);
  std::mt19937 random(seed);
  for (int round = 0; round < 300; ++round) {
    INFO("round " << round);
    Machine other = random_machine(random);
    for (Nic& nic : other.nics) {
      constexpr double kSpeeds[] = {0, 1, 10, 100, 400};
      nic.gbps = kSpeeds[random() % 5];
      nic.layer = static_cast<Nic::Layer>(random() % 3);
      nic.active = random() % 4 > 0;
      if (random() % 3 == 0) nic.physical = other.nics[random() % other.nics.size()].pci;
      if (random() % 3 == 0) nic.guid = 1 + random() % 2;
    }
    const bool any = std::any_of(other.nics.begin(), other.nics.end(),
                                 [](const Nic& nic) { return nic.active; });
    const Nic::Layer layer = layer_of(other);
    auto choices = choose_nics(other);
    for (const NicChoice& choice : choose_nics_of_numa_nodes(other)) choices.push_back(choice);
    choices.push_back(choose_nic_at(other, {}, static_cast<int>(random() % 4)));
    for (const NicChoice& choice : choices) {
      REQUIRE((choice.primary >= 0) == any);
      if (any) REQUIRE(other.nics[static_cast<std::size_t>(choice.primary)].layer == layer);
    }
  }
}

TEST_CASE("a layer that leaves each GPU less than half of what another does is not used",
          "[req:2.5]") {
  // Three GPUs are beside 25 of Ethernet, the fourth beside InfiniBand: 6.25 for each, or a
  // quarter.
  const auto layer_with = [](double gbps, bool ethernet_is_alive = true) {
    MachineBuilder build;
    const int near = build.host_bridge(build.numa(0, {0}));
    const int far = build.host_bridge(build.numa(1, {1}));
    for (int i = 0; i < 4; ++i) {
      build.gpu(i < 3 ? near : far, fmt::format("0000:{}1:00.0", i + 1).c_str());
    }
    for (int port = 0; port < 2; ++port) {
      build.nic(near, fmt::format("0000:10:00.{}", port).c_str(), "eth", 25);
      build.machine.nics.back().layer = Nic::Layer::ethernet;
      build.machine.nics.back().active = port == 0 || ethernet_is_alive;
    }
    build.nic(far, "0000:f0:00.0", "ib", gbps);
    return layer_of(canonical(std::move(build.machine)));
  };
  CHECK(layer_with(200) == Nic::Layer::infiniband);
  CHECK(layer_with(110) == Nic::Layer::infiniband);  // two users of each port of Ethernet
  for (const bool is_alive : {true, false}) {        // and where one is dead no other layer
    CHECK(layer_with(100, is_alive) == Nic::Layer::ethernet);
  }
}

TEST_CASE("NUMA nodes without processors have no say in the link layer, and no NIC", "[req:2.5]") {
  for (const bool known : {true, false}) {
    MachineBuilder build;
    for (int node = 0; node < 4; ++node) {  // two of them memory beside the Ethernet port
      build.numa(node, known && node < 2 ? std::vector<int>{node} : std::vector<int>{});
      build.machine.numa.back().distances = {10, 21, 12, 12};
    }
    build.machine.numa[1].distances = {21, 10, 24, 24};
    build.nic(build.host_bridge(0), "0000:10:00.0", "eth", 100);
    build.machine.nics.back().layer = Nic::Layer::ethernet;
    build.nic(build.host_bridge(1), "0000:20:00.0", "ib", 100);
    const Machine machine = canonical(std::move(build.machine));
    CHECK(layer_of(machine) == (known ? Nic::Layer::infiniband : Nic::Layer::ethernet));
    const auto choices = choose_nics_of_numa_nodes(machine);
    CHECK(primaries(choices) == (known ? std::vector<int>{1, 1, -1, -1} : std::vector<int>(4, 0)));
  }
}

TEST_CASE("a port of unknown speed is slow where its layer's speed is known, and only there",
          "[req:2.5]") {
  Machine machine = with_storage_cards(4, 0);
  named(machine, "ib0").gbps = 0;
  CHECK(PortSpeeds(machine).is_slow(0));
  for (const NicChoice& choice : choose_nics(machine)) CHECK(choice.primary > 0);
  named(machine, "ib0").layer = Nic::Layer::ethernet;
  CHECK_FALSE(PortSpeeds(machine).is_slow(0));
  for (Nic& nic : machine.nics) nic.gbps = 0;
  CHECK_FALSE(PortSpeeds(machine).is_slow(1));
}

}  // namespace oriel::topo
