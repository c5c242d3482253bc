// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
// 2.1 and 2.5: PCI buses and network interfaces from /sys, and which interfaces a rank uses.
#include "topo/choice/interface_choice.hpp"

#include <algorithm>
#include <fstream>
#include <map>
#include <random>
#include <set>

#include <catch2/catch.hpp>
#include <fmt/format.h>

#include "topo/choice/interface_users.hpp"
#include "topo/machine/process_machine.hpp"
#include "topo/sources/sys_tree.hpp"
#include "topo/sources/temporary_tree.hpp"

namespace oriel::topo {
namespace {

TEST_CASE("without hwloc the kernel's lists yield PCI buses with GPUs and network cards",
          "[req:2.1]") {
  Sys sys;
  fill(sys);
  sys.device("0000:05:00.0", "0x010802", 0, "00");            // a disk
  sys.device("0000:06:00.0", "0x030000", 0, "00", "0x1a03");  // a display of no use
  sys.device("0000:07:00.0", "0x120000", 0, "00", "0x1002");  // AMD
  const Machine machine = sys.machine();
  CHECK(machine.gpus.size() == 5);
  CHECK(machine.pci.size() == 2 + 4 + 4 + 4 + 1);
  CHECK(find_pci_node(machine, address("0000:05:00.0")) < 0);
  const int gpu = find_pci_node(machine, address("0000:42:00.0"));
  const int nic = find_pci_node(machine, address("0000:43:00.0"));
  const int far = find_pci_node(machine, address("0000:83:00.0"));
  REQUIRE(std::min({gpu, nic, far}) >= 0);
  const Route near = route_between(machine, {gpu, 0}, {nic, 0});
  CHECK(near.distance == Distance::one_switch);
  CHECK(near.link_gbps == Approx(16 * 15.754));
  CHECK(route_between(machine, {gpu, 0}, {far, 1}).distance == Distance::system);
  CHECK(machine.pci[static_cast<std::size_t>(far)].numa == 1);
}

TEST_CASE("a GPU uses the nearest interface, and falls back on another card", "[req:2.5]") {
  Sys sys;
  fill(sys);
  const InterfaceChoice choice = sys.choose(user_on_gpu("0000:42:00.0"));
  CHECK(choice.primary == "ens1");
  CHECK(choice.backup == "ens0");
  CHECK(choice.all == Names{"ens1", "ens0", "ens2", "ens3"});
  CHECK(choice.reason == "ens1 on 0000:43:00.0 (PIX); backup ens0, another card");
  CHECK(sys.choose(user_on_gpu("0000:82:00.0")).primary == "ens2");
  CHECK(sys.choose(user_on_gpu("0000:c2:00.0")).backup == "ens2");
}

TEST_CASE("ranks on CPUs use all interfaces of their NUMA nodes, in whatever order they are",
          "[req:2.5]") {
  Sys sys;
  fill(sys);
  const auto users_of = [&](const std::vector<int>& numa_of_ranks) {
    std::vector<RankInfo> ranks;
    for (const int numa : numa_of_ranks) {
      ranks.emplace_back();
      ranks.back().numa = numa;
      ranks.emplace_back();  // on another node
      ranks.back().node.host = 1;
      ranks.emplace_back();
      ranks.back().kind = DeviceKind::cuda;
    }
    std::map<std::string, int> users;
    for (std::size_t rank = 0; rank < ranks.size(); rank += 3) {
      const InterfaceUser user = interface_user(ranks, rank);
      const InterfaceChoice choice = sys.choose(user);
      const bool near =
          choice.primary == "ens0" || choice.primary == "ens1" ? user.numa != 1 : user.numa != 0;
      CHECK(near);
      ++users[choice.primary];
    }
    return users;
  };
  using Users = std::map<std::string, int>;
  const Users even{{"ens0", 2}, {"ens1", 2}, {"ens2", 2}, {"ens3", 2}};
  CHECK(users_of({0, 1, 0, 1, 0, 1, 0, 1}) == even);
  CHECK(users_of({0, 0, 0, 0, 1, 1, 1, 1}) == even);
  CHECK(users_of({0, 0, 0, 0, -1, -1, -1, -1}) == even);  // bound to none: where there is room
  CHECK(users_of({-1, -1, -1, -1, 0, 0, 0, 0}) == even);
  CHECK(users_of({0, 1, 0, 0}) == Users{{"ens0", 2}, {"ens1", 1}, {"ens2", 1}});
}

TEST_CASE("the backup is the other port of a card, and never the same port", "[req:2.5][B3]") {
  Sys sys;
  sys.interface("ens1f0", "0000:03:00.0", 0, "00", 100'000);
  sys.interface("ens1f1", "0000:03:00.1", 0, "00", 100'000);
  SECTION("of two functions") {
    sys.interface("ens2", "0000:04:00.0", 0, "00", 100'000);
    const InterfaceChoice choice = sys.choose(user_on_cpu(0));
    CHECK(choice.primary == "ens1f0");
    CHECK(choice.backup == "ens1f1");
    CHECK(choice.reason.find("the other port of the card") != std::string::npos);
  }
  SECTION("a virtual function is on the port of its physical one") {
    sys.interface("ens1f0v0", "0000:03:00.2", 0, "00", 100'000);
    sys.virtual_function("0000:03:00.2", "0000:03:00.0");
    const InterfaceChoice choice = sys.choose(user_on_cpu(0), {"ens1f0", "ens1f0v0"});
    CHECK(choice.primary == "ens1f0");
    CHECK(choice.backup.empty());
    CHECK(choice.all == Names{"ens1f0", "ens1f0v0"});
    CHECK(sys.choose(user_on_cpu(0), {"ens1f0v0", "ens1f1"}).backup == "ens1f0v0");
  }
  SECTION("so is a subfunction, while devices of virtio have one each") {
    for (const char* name : {"mlx5_core.sf.4", "virtio5", "virtio6"}) {
      const bool sub = name[0] == 'm';
      const std::string device =
          std::string("/sys/devices/pci0000:00/0000:00:01.0/0000:03:00.0/") + name;
      sys.plain(sub ? "sf4" : name, 100'000);
      sys.link(device + "/subsystem", sub ? "../../../../../bus/auxiliary" : "../../virtio");
      sys.link(fmt::format("/sys/class/net/{}/device", sub ? "sf4" : name),
               "../../.." + device.substr(4));
    }
    CHECK(sys.choose(user_on_cpu(0), {"ens1f0", "sf4"}).backup.empty());
    CHECK(sys.choose(user_on_cpu(0), {"sf4", "ens1f1"}).backup == "ens1f1");
    CHECK(sys.choose(user_on_cpu(0), {"virtio5", "virtio6"}).backup == "virtio6");
    const auto all = sys.interfaces();
    CHECK(std::all_of(all.begin(), all.end(), [](const NetworkInterface& one) {
      return one.ports.size() == 1 && one.ports[0].pci &&
             one.ports[0].pci->bus == 3;  // also of what is behind the function
    }));
  }
  SECTION("two ports of one function are two") {
    sys.interface("ib0", "0000:05:00.0", 0, "00", 100'000, 0);
    sys.interface("ib1", "0000:05:00.0", 0, "00", 100'000, 1);
    CHECK(sys.choose(user_on_cpu(0), {"ib0", "ib1"}).backup == "ib1");
  }
  SECTION("a bond stands for all its ports, a VLAN for those below it") {
    sys.plain("bond0", 200'000);
    for (const char* part : {"ens1f0", "ens1f1"}) {
      sys.link(fmt::format("/sys/class/net/{}/master", part), "../bond0");
      sys.link(fmt::format("/sys/class/net/bond0/lower_{}", part), fmt::format("../{}", part));
    }
    sys.plain("bond0.7", 200'000);
    sys.link("/sys/class/net/bond0.7/lower_bond0", "../bond0");
    sys.interface("ens2", "0000:04:00.0", 0, "00", 100'000);
    const InterfaceChoice choice = sys.choose(user_on_cpu(0));
    CHECK(choice.all == Names{"bond0", "ens2", "bond0.7"});
    CHECK(choice.backup == "ens2");
    CHECK(sys.choose(user_on_cpu(0), {"bond0", "bond0.7", "ens1f1"}).backup.empty());
  }
}

TEST_CASE("an interface that goes down leaves the pairs of others as they were", "[req:2.5][B3]") {
  const auto pairs = [](const Sys& sys) {
    std::map<std::string, std::string> backups;
    for (int rank = 0; rank < 4; ++rank) {
      const InterfaceChoice choice = sys.choose(user_on_cpu(0, rank));
      backups[choice.primary] = choice.backup;
    }
    return backups;
  };
  Sys sys;
  for (int card = 0; card < 4; ++card) {
    sys.interface(fmt::format("ens{}", card), fmt::format("0000:0{}:00.0", 3 + card), 0, "00",
                  100'000);
  }
  using Pairs = std::map<std::string, std::string>;
  CHECK(pairs(sys) ==
        Pairs{{"ens0", "ens1"}, {"ens1", "ens0"}, {"ens2", "ens3"}, {"ens3", "ens2"}});
  sys.file("/sys/class/net/ens0/operstate", "down\n");
  const Pairs left = pairs(sys);
  CHECK(left.count("ens0") == 0);
  CHECK(left.at("ens2") == "ens3");
  CHECK(left.at("ens3") == "ens2");
  CHECK(left.at("ens1") == "ens2");  // its partner is gone: the nearest
}

TEST_CASE("what is built upon a port is no port of its own: GPUs and ranks use others",
          "[req:2.5]") {
  Sys sys;
  for (const char* gpu : {"0000:02:00.0", "0000:04:00.0"}) sys.gpu(gpu, 0, "00");
  const auto used = [&] {
    std::vector<std::pair<std::string, std::string>> chosen;
    for (const InterfaceUser& user : {user_on_gpu("0000:02:00.0"), user_on_gpu("0000:04:00.0"),
                                      user_on_cpu(0, 0), user_on_cpu(0, 1), user_on_cpu(0, 2)}) {
      const InterfaceChoice choice = sys.choose(user);
      chosen.emplace_back(choice.primary, choice.backup);
    }
    return chosen;
  };
  using Used = std::vector<std::pair<std::string, std::string>>;
  const auto by_turns = [](const char* a, const char* b) {
    return Used{{a, b}, {b, a}, {a, b}, {b, a}, {a, b}};
  };
  SECTION("VLANs, whatever they are called") {
    sys.interface("eth0", "0000:05:00.0", 0, "00", 100'000);
    sys.interface("eth1", "0000:06:00.0", 0, "00", 100'000);
    for (const char* name : {"eth0.7", "a7", "a8"}) {
      sys.plain(name, 100'000);
      sys.link(fmt::format("/sys/class/net/{}/lower_eth0", name), "../eth0");
    }
    CHECK(used() == by_turns("eth0", "eth1"));
  }
  SECTION("children of IPoIB") {
    sys.interface("ib0", "0000:05:00.0", 0, "00", 200'000);
    sys.interface("child", "0000:05:00.0", 0, "00", 200'000);
    sys.file("/sys/class/net/child/parent", "ib0\n");
    sys.interface("ib1", "0000:06:00.0", 0, "00", 200'000);
    CHECK(used() == by_turns("ib0", "ib1"));
  }
  SECTION("a bond beside what is on one of its ports") {
    sys.interface("ens1f0", "0000:05:00.0", 0, "00", 100'000);
    sys.interface("ens1f1", "0000:05:00.1", 0, "00", 100'000);
    sys.interface("ens1f1v0", "0000:05:00.2", 0, "00", 100'000);
    sys.virtual_function("0000:05:00.2", "0000:05:00.1");
    sys.interface("ens2", "0000:06:00.0", 0, "00", 200'000);
    sys.plain("bond0", 200'000);
    for (const char* part : {"ens1f0", "ens1f1"}) {
      sys.link(fmt::format("/sys/class/net/{}/master", part), "../bond0");
      sys.link(fmt::format("/sys/class/net/bond0/lower_{}", part), fmt::format("../{}", part));
    }
    CHECK(used() == by_turns("bond0", "ens2"));
    CHECK(sys.choose(user_on_cpu(0), {"bond0", "ens1f0"}).all == Names{"bond0", "ens1f0"});
  }
  SECTION("the second port of a function is none of what is on the first") {
    sys.interface("ib1", "0000:05:00.0", 0, "00", 200'000, 1);
    sys.interface("v0", "0000:05:00.2", 0, "00", 200'000, 0);
    sys.virtual_function("0000:05:00.2", "0000:05:00.0");
    CHECK(used() == by_turns("ib1", "v0"));
  }
  SECTION("but devices of virtio behind one function are") {
    for (const char* name : {"virtio5", "virtio6"}) {
      sys.interface(fmt::format("of_{}", name), "0000:05:00.0", 0, "00", 100'000);
      const std::string device =
          std::string("/sys/devices/pci0000:00/0000:00:01.0/0000:05:00.0/") + name;
      sys.plain(name, 100'000);
      sys.link(device + "/subsystem", "../../virtio");
      sys.link(fmt::format("/sys/class/net/{}/device", name), "../../.." + device.substr(4));
    }
    sys.file("/sys/class/net/of_virtio5/operstate", "down\n");
    sys.file("/sys/class/net/of_virtio6/operstate", "down\n");
    CHECK(used() == by_turns("virtio5", "virtio6"));
  }
}

TEST_CASE("VLANs decide neither pairs nor the link layer", "[req:2.5]") {
  Sys sys;
  for (int i = 0; i < 4; ++i) {
    sys.interface(fmt::format("eth{}", i), fmt::format("0000:0{}:00.0", 3 + i), 0, "00", 100'000);
  }
  sys.plain("eth2.7", 100'000);
  sys.link("/sys/class/net/eth2.7/lower_eth2", "../eth2");
  for (int rank = 0; rank < 4; ++rank) {
    const InterfaceChoice choice = sys.choose(user_on_cpu(0, rank));
    CHECK(choice.primary == fmt::format("eth{}", rank));
    CHECK(choice.backup == fmt::format("eth{}", rank ^ 1));
  }
  Sys layers;
  layers.gpu("0000:02:00.0", 0, "00");
  layers.interface("ib0", "0000:05:00.0", 0, "00", 200'000);
  layers.interface("eth0", "0000:06:00.0", 0, "00", 100'000);
  layers.file("/sys/class/net/ib0/type", "32\n");
  layers.file("/sys/class/net/eth0/type", "1\n");
  for (const char* name : {"eth0.1", "eth0.2"}) {
    layers.plain(name, 100'000);
    layers.file(fmt::format("/sys/class/net/{}/type", name), "1\n");
    layers.link(fmt::format("/sys/class/net/{}/lower_eth0", name), "../eth0");
  }
  CHECK(layers.choose(user_on_gpu("0000:02:00.0")).primary == "ib0");
}

TEST_CASE("a container's way out stays that, whatever else without hardware is there",
          "[req:2.5]") {
  Sys sys;
  sys.plain("eth0", 10'000);
  sys.file("/sys/class/net/eth0/type", "1\n");
  for (const char* name : {"wg0", "wg1"}) {
    sys.plain(name, 0);
    sys.file(fmt::format("/sys/class/net/{}/type", name), "65534\n");
    for (int rank = 0; rank < 3; ++rank) CHECK(sys.choose(user_on_cpu(0, rank)).primary == "eth0");
  }
  CHECK(sys.choose(user_on_cpu(0)).backup == "wg0");
  SECTION("a bridge of its layer, by the routes") {
    sys.plain("docker0", 20'000);
    sys.file("/sys/class/net/docker0/type", "1\n");
    const char* const kRest = "0 0 0";
    const std::string head = "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\n";
    const std::string other = "docker0\t000011AC\t00000000\t0001\t0\t0\t0\t0000FFFF\t0 0 0\n";
    const std::string none(32, '0');
    CHECK(sys.choose(user_on_cpu(0)).primary == "docker0");
    SECTION("of version 4") {
      sys.file("/proc/net/route",
               head + other + "eth0\t00000000\t010011AC\t0003\t0\t0\t0\t00000000\t" + kRest);
    }
    SECTION("of version 6") {
      sys.file("/proc/net/route", head + other);
      sys.file("/proc/net/ipv6_route", "fe80" + none.substr(4) + " 40 " + none + " 00 " + none +
                                           " 0 1 0 1 docker0\n" + none + " 00 " + none + " 00 " +
                                           none + " 0 1 0 3 eth0\n");
    }
    for (int rank = 0; rank < 3; ++rank) CHECK(sys.choose(user_on_cpu(0, rank)).primary == "eth0");
    CHECK(sys.choose(user_on_cpu(0)).backup == "docker0");
  }
  SECTION("hardware comes before it all the same") {
    sys.interface("ens1", "0000:03:00.0", 0, "00", 100'000);
    sys.file("/proc/net/route", "eth0 00000000 010011AC 0003 0 0 0 00000000 0 0 0\n");
    CHECK(sys.choose(user_on_cpu(0)).primary == "ens1");
    CHECK(sys.choose(user_on_cpu(0)).backup == "eth0");
  }
}

TEST_CASE("a slow port is no primary, however near, but better than no backup", "[req:2.5]") {
  Sys sys;
  sys.gpu("0000:02:00.0", 0, "00");
  sys.interface("eno1", "0000:03:00.0", 0, "00", 1'000);
  sys.interface("ens7", "0000:83:00.0", 1, "80", 100'000);
  const InterfaceChoice choice = sys.choose(user_on_gpu("0000:02:00.0"));
  CHECK(choice.primary == "ens7");
  CHECK(choice.backup == "eno1");
  SECTION("whatever those without hardware say of their speed") {
    sys.plain("veth0", 10'000'000);
    CHECK(sys.choose(user_on_gpu("0000:02:00.0")).all == Names{"ens7", "eno1", "veth0"});
  }
  SECTION("others come before it, though they are farther") {
    sys.interface("ens1", "0000:04:00.0", 0, "00", 100'000);
    sys.interface("ens8", "0000:84:00.0", 1, "80", 100'000);
    CHECK(sys.choose(user_on_gpu("0000:02:00.0")).all == Names{"ens1", "ens7", "ens8", "eno1"});
    sys.plain("veth0", 10'000'000);
    CHECK(sys.choose(user_on_gpu("0000:02:00.0")).all ==
          Names{"ens1", "ens7", "ens8", "eno1", "veth0"});
  }
  SECTION("alone it is") {
    CHECK(sys.choose(user_on_gpu("0000:02:00.0"), {"eno1"}).primary == "eno1");
  }
}

TEST_CASE("all ranks of a machine use interfaces of one link layer, by what /sys says",
          "[req:2.5]") {
  Sys sys;
  sys.gpu("0000:02:00.0", 0, "00");
  sys.gpu("0000:82:00.0", 1, "80");
  const auto add = [&](const char* name, const char* pci, int node, int megabits,
                       const char* type) {
    sys.interface(name, pci, node, node == 0 ? "00" : "80", megabits);
    sys.file(fmt::format("/sys/class/net/{}/type", name), type);
  };
  const auto all_use = [&](const char* name) {
    for (const InterfaceUser& user : {user_on_gpu("0000:02:00.0"), user_on_gpu("0000:82:00.0"),
                                      user_on_cpu(0), user_on_cpu(1)}) {
      CHECK(sys.choose(user).primary == name);
    }
  };
  add("eth0", "0000:03:00.0", 0, 100'000, "1\n");
  add("ib0", "0000:83:00.0", 1, 100'000, "32\n");
  CHECK(sys.interfaces()[0].layer == Nic::Layer::ethernet);
  CHECK(sys.interfaces()[1].layer == Nic::Layer::infiniband);
  all_use("ib0");
  CHECK(sys.choose(user_on_cpu(0)).backup == "eth0");
  sys.file("/sys/class/net/ib0/speed", "50000\n");
  all_use("eth0");
  add("odd0", "0000:84:00.0", 1, 200'000, "65534\n");
  CHECK(sys.interfaces()[2].layer == Nic::Layer::other);
  all_use("odd0");
  add("eth1", "0000:85:00.0", 1, 200'000, "1\n");
  add("eth2", "0000:05:00.0", 0, 100'000, "1\n");
  // Others of the layer come first, though they are farther.
  CHECK(sys.choose(user_on_gpu("0000:82:00.0")).all ==
        Names{"eth1", "eth0", "eth2", "ib0", "odd0"});
}

TEST_CASE("what is down, a loopback, or without hardware is left for when nothing else is",
          "[req:2.5]") {
  Sys sys;
  sys.plain("lo", 0);
  sys.file("/sys/class/net/lo/flags", "0x9\n");
  sys.file("/sys/class/net/lo/operstate", "unknown\n");
  sys.plain("veth1", 10'000);
  sys.file("/sys/class/net/bonding_masters", "");
  CHECK(sys.interfaces().size() == 2);
  CHECK(sys.choose(user_on_cpu(0)).all == Names{"veth1"});
  sys.interface("ens1", "0000:03:00.0", 0, "00", 1'000);
  sys.interface("ens2", "0000:04:00.0", 0, "00", 1'000);
  sys.file("/sys/class/net/ens2/operstate", "down\n");
  const InterfaceChoice choice = sys.choose(user_on_cpu(0));
  CHECK(choice.all == Names{"ens1", "veth1"});
  CHECK(choice.backup == "veth1");
  CHECK(choice.reason.find("nothing says") != std::string::npos);
  CHECK(sys.choose(user_on_cpu(0), {"lo"}).primary == "lo");
  CHECK(sys.choose(user_on_cpu(0), {"ens2"}).primary.empty());
  SECTION("where /sys is hidden, the caller's word is all there is") {
    const InterfaceChoice blind =
        choose_interfaces({}, {}, user_on_cpu(0), {"eth1", "eth0", "eth0"});
    CHECK(blind.all == Names{"eth0", "eth1"});
    CHECK(choose_interfaces({}, {}, user_on_cpu(0)).all.empty());
  }
}

TEST_CASE("the order of lists changes no choice, and no interface is used twice as much",
          "[req:2.5][req:2.9]") {
  const auto seed = std::random_device{}();
  CAPTURE(seed);
  std::mt19937 random(seed);
  for (int round = 0; round < 3; ++round) {
    Sys sys;
    const int gpus = 1 + static_cast<int>(random() % 8);
    const int cards = 1 + static_cast<int>(random() % 5);
    for (int i = 0; i < gpus; ++i) sys.gpu(fmt::format("0000:{:02x}:00.0", 0x10 + i), 0, "00");
    for (int i = 0; i < cards; ++i) {
      const int ports = 1 + static_cast<int>(random() % 2);
      for (int port = 0; port < ports; ++port) {
        sys.interface(fmt::format("e{}p{}", random() % 1000 * 10 + static_cast<unsigned>(i), port),
                      fmt::format("0000:{:02x}:00.{}", 0x40 + i, port), 0, "00", 100'000);
      }
    }
    const Machine machine = sys.machine();
    auto interfaces = sys.interfaces();
    std::map<std::string, int> users;
    for (const Gpu& gpu : machine.gpus) {
      const InterfaceUser user = user_on_gpu(gpu.pci->to_string());
      const InterfaceChoice choice = choose_interfaces(machine, interfaces, user);
      std::shuffle(interfaces.begin(), interfaces.end(), random);
      CHECK(choose_interfaces(machine, interfaces, user) == choice);
      CHECK(choice.backup != choice.primary);
      CHECK(choice.backup.empty() == (interfaces.size() == 1));
      ++users[choice.primary];
    }
    int most = 0;
    for (const auto& [name, count] : users) most = std::max(most, count);
    const int share =
        (gpus + static_cast<int>(interfaces.size()) - 1) / static_cast<int>(interfaces.size());
    CHECK(most == share);
  }
}

TEST_CASE("this process's own interfaces are found, and asked for again cost no new look",
          "[req:2.5]") {
  Sys sys;
  fill(sys);
  MachineSources sources;
  sources.files = sys.tree();
  ProcessMachine process(sources);
  const ScopedProcessMachine scoped(process);
  RankInfo rank;
  rank.pci_id = "0000:82:00.0";
  const auto choice = own_interfaces(interface_user({rank}, 0));
  REQUIRE(choice.ok());
  CHECK(choice->primary == "ens2");
  const Settings settings;
  const auto first = process.network(settings);
  const auto second = process.network(settings);
  REQUIRE(first.ok());
  CHECK(first->get() == second->get());
}

TEST_CASE("a rank's own adapter is the RDMA port that is chosen for it", "[req:2.5][req:3.11]") {
  const TemporaryTree files;
  const auto with = [&](const std::string& ports) {
    const std::string path = files.root() + "/machine.xml";
    std::ofstream(path) << R"(<system version="1">
      <cpu numaid="0" affinity="0000000f" arch="x86_64"></cpu>
      <cpu numaid="1" affinity="000000f0" arch="x86_64">)"
                        << ports << "</cpu></system>";
    Settings settings;
    settings.topo_file = path;
    return settings;
  };
  const auto port = [](int bus, const char* name, int number) {
    return fmt::format(
        R"(<pci busid="0000:{}:00.0" class="0x020700"><nic><net name="{}" dev="0" speed="100000")"
        R"( port="{}" guid="0x{}"/></nic></pci>)",
        bus, name, number, bus);
  };
  const auto chosen = [](const Settings& settings, const InterfaceUser& user) {
    ProcessMachine process;  // a file is read once in a process
    const ScopedProcessMachine scoped(process);
    return own_adapter(user, settings);
  };
  const Settings two = with(port(10, "mlx5_4", 2) + port(20, "mlx5_7", 1));
  const auto first = chosen(two, {std::nullopt, 1, 0, {1, 1}});
  const auto second = chosen(two, {std::nullopt, 1, 1, {1, 1}});
  REQUIRE(first.ok());
  REQUIRE(second.ok());
  CHECK(first->name == "mlx5_4");
  CHECK(first->port == 2);
  CHECK(second->name == "mlx5_7");
  CHECK(second->port == 1);
  const auto none = chosen(with(""), user_on_cpu(0));
  REQUIRE_FALSE(none.ok());
  CHECK(none.error().code() == ErrorCode::system);
  CHECK(none.error().message().find("no RDMA port") != std::string::npos);
  CHECK_FALSE(chosen(with("<"), user_on_cpu(0)).ok());
}

}  // namespace
}  // namespace oriel::topo
