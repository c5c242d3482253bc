// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
// 2.5: that GPUs share NICs as evenly as can be, what is slow, and where backups spread.
#include <algorithm>
#include <functional>
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

/// Each GPU and each NIC at a NUMA node of its own, with distances at random: any set of NICs may
/// be the nearest of a GPU.
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

/// The nearest NICs of each GPU.
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

/// What all assignments are worth, and the best of it: tries each.
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
    // With one speed the squares of users are the fewest where these are as even as can be.
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

TEST_CASE("of equally near NICs the faster one has more users, and of equal shares the free",
          "[req:2.5]") {
  const auto machine = [](int gpus, const std::vector<double>& speeds) {
    MachineBuilder build;
    const int root = build.host_bridge(build.numa(0, {0}));
    for (int i = 0; i < gpus; ++i) build.gpu(root, address_on_bus(1 + i).c_str());
    for (const double gbps : speeds) {
      const int bus = 0x20 + static_cast<int>(build.machine.nics.size());
      build.nic(root, address_on_bus(bus).c_str(), "mlx5_0", gbps);
    }
    return canonical(std::move(build.machine));
  };
  CHECK(primaries(choose_nics(machine(4, {100, 400}))) == std::vector<int>{1, 1, 1, 0});
  CHECK(primaries(choose_nics(machine(2, {100, 400}))) == std::vector<int>{1, 1});
  CHECK(primaries(choose_nics(machine(2, {200, 400}))) == std::vector<int>{1, 0});
  CHECK(primaries(choose_nics(machine(3, {0, 400}))) == std::vector<int>{1, 1, 1});
  CHECK(primaries(choose_nics(machine(3, {0, 0}))) == std::vector<int>{0, 1, 0});
}

TEST_CASE("a slow port is no primary, wherever other GPUs are", "[req:2.5]") {
  for (int far = 0; far < 4; ++far) {
    INFO(far << " GPUs beside a slow port alone");
    MachineBuilder build;
    const int near = build.host_bridge(build.numa(0, {0}));
    build.gpu(near, "0000:11:00.0");
    build.gpu(near, "0000:12:00.0");
    build.nic(near, "0000:13:00.0", "mgmt0", 10);
    build.nic(near, "0000:14:00.0", "fast0", 100);
    const int other = build.host_bridge(build.numa(1, {1}));
    for (int i = 0; i < far; ++i) build.gpu(other, address_on_bus(0x81 + i).c_str());
    build.nic(other, "0000:91:00.0", "mgmt1", 10);
    const Machine machine = canonical(std::move(build.machine));
    const auto count = static_cast<std::size_t>(far) + 2;
    CHECK(primaries(choose_nics(machine)) == std::vector<int>(count, 1));
    CHECK(primaries(choose_nics_of_numa_nodes(machine)) == std::vector<int>{1, 1});
    CHECK(choose_nic_at(machine, {-1, 1}, far).primary == 1);
  }
}

TEST_CASE("the link layer is that of the ports that are fastest together, each counted once",
          "[req:2.5]") {
  MachineBuilder build;
  const int root = build.host_bridge(build.numa(0, {0}));
  build.gpu(root, "0000:01:00.0");
  build.nic(root, "0000:10:00.0", "eth", 400);
  build.nic(root, "0000:10:00.1", "eth_v", 400);
  build.machine.nics[1].physical = build.machine.nics[0].pci;
  for (Nic& nic : build.machine.nics) nic.layer = Nic::Layer::ethernet;
  const auto primary = [&](const MachineBuilder& built) {
    const Machine machine = canonical(built.machine);
    const int index = choose_nics(machine)[0].primary;
    return index < 0 ? "none" : machine.nics[static_cast<std::size_t>(index)].name;
  };
  MachineBuilder slow = build;  // 440 together, but slow
  for (int i = 0; i < 11; ++i) slow.nic(root, address_on_bus(0x20 + i).c_str(), "slow", 40);
  CHECK(primary(slow) == "eth");
  build.nic(root, "0000:20:00.0", "ib0", 200);
  CHECK(primary(build) == "eth");
  build.nic(root, "0000:21:00.0", "ib1", 200);
  CHECK(primary(build) == "ib0");  // as fast
  build.nic(root, "0000:11:00.0", "eth1", 100);
  build.machine.nics.back().layer = Nic::Layer::ethernet;
  CHECK(primary(build) == "eth");
}

namespace {

/// GPUs below switches with a NIC each, and other NICs below the host bridge or at a second socket.
class Backed {
 public:
  Backed() : root_(build_.host_bridge(build_.numa(0, {0}))) {
    far_ = build_.host_bridge(build_.numa(1, {1}));
  }
  void shared(int bus, int gpus) {
    const int under = build_.bridge(root_, address_on_bus(bus).c_str());
    for (int i = 0; i < gpus; ++i) build_.gpu(under, address_on_bus(bus + 1 + i).c_str());
    build_.nic(under, address_on_bus(bus + 8).c_str(), "own");
  }
  void near(int bus, double gbps = 400, Nic::Layer layer = Nic::Layer::infiniband) {
    build_.nic(root_, address_on_bus(bus).c_str(), "near", gbps);
    build_.machine.nics.back().layer = layer;
  }
  void far(int bus) { build_.nic(far_, address_on_bus(bus).c_str(), "far"); }
  std::vector<int> backups_of_gpus() const {
    return backups(choose_nics(canonical(build_.machine)));
  }

 private:
  MachineBuilder build_;
  int root_;
  int far_;
};

}  // namespace

TEST_CASE("the first user of a port falls back on its partner, others where the fewest do",
          "[req:2.5][B3]") {
  Backed machine;
  machine.shared(0x10, 3);
  for (const int bus : {0x20, 0x21, 0x22}) machine.near(bus);
  CHECK(machine.backups_of_gpus() == std::vector<int>{1, 2, 3});

  Backed two;  // partners are taken first: 1 and 2 are those of 0 and 3
  two.shared(0x10, 2);
  two.near(0x20);
  two.near(0x21);
  two.shared(0x30, 1);
  CHECK(two.backups_of_gpus() == std::vector<int>{1, 3, 2});
}

TEST_CASE("a card with four ports is two pairs, and of three ports the last has no partner",
          "[B3]") {
  for (const int ports : {4, 3}) {
    MachineBuilder build;
    const int root = build.host_bridge(build.numa(0, {0}));
    build.nic(root, "0000:01:00.0", "other", 400, 7);
    for (int port = 0; port < ports; ++port) {
      build.nic(root, fmt::format("0000:10:00.{}", port).c_str(), "port", 400, 8);
    }
    const Machine machine = canonical(std::move(build.machine));
    // A card with one port that is left over has none either.
    CHECK(partners_by_place(machine) ==
          (ports == 4 ? std::vector<int>{-1, 2, 1, 4, 3} : std::vector<int>{-1, 2, 1, -1}));
    Machine dead = machine;
    dead.nics[1].active = false;
    CHECK(partners_by_place(dead) ==
          (ports == 4 ? std::vector<int>{-1, -1, -1, 4, 3} : std::vector<int>{-1, -1, -1, -1}));
  }
}

TEST_CASE("a backup is of the primary's layer, then not slow, then near", "[req:2.5]") {
  Backed near;
  near.shared(0x10, 2);
  near.near(0x20);
  near.far(0x90);
  CHECK(near.backups_of_gpus() == std::vector<int>{1, 1});

  Backed slow;  // it is the partner by place
  slow.shared(0x10, 2);
  slow.near(0x20, 40);
  slow.far(0x90);
  CHECK(slow.backups_of_gpus() == std::vector<int>{2, 2});

  Backed layers;
  layers.shared(0x10, 2);
  layers.near(0x20, 400, Nic::Layer::ethernet);
  layers.far(0x90);
  CHECK(layers.backups_of_gpus() == std::vector<int>{2, 2});

  Backed order;  // a slow one of the layer comes before a fast one of another
  order.shared(0x10, 2);
  order.near(0x20, 400, Nic::Layer::ethernet);
  order.near(0x21, 40);
  CHECK(order.backups_of_gpus() == std::vector<int>{2, 2});
}

}  // namespace oriel::topo
