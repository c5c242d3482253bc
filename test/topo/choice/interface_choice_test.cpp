// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
// Tests PCI buses and network interfaces from /sys, and the interfaces that a rank uses: tables of
// machines.
#include "topo/choice/interface_choice.hpp"

#include <algorithm>
#include <map>
#include <sstream>

#include <catch2/catch.hpp>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "support/words.hpp"
#include "topo/choice/interface_users.hpp"
#include "topo/machine/machine_file.hpp"
#include "topo/machine/machines.hpp"
#include "topo/machine/process_machine.hpp"
#include "topo/sources/sys_tree.hpp"
#include "topo/sources/temporary_tree.hpp"

namespace oriel::topo {
namespace {

using test::has;

using Questions = std::vector<std::pair<const char*, std::string>>;

struct InterfaceRow {
  const char* what;
  const char* interfaces;  // Sys
  /// Pairs of a rank and the expected beginning of its answer. `g42` is the GPU on bus 42; `c0.1`
  /// is the second rank on the CPU at NUMA node 0. After ` of a,b` only these interfaces are
  /// usable.
  Questions questions;
};

/// Returns "primary+backup others", or "primary others" if there is no backup.
std::string answer(const Sys& sys, const std::string& question) {
  const std::string who = question.substr(0, question.find(' '));
  Names usable;
  if (const std::size_t of = question.find(" of "); of != std::string::npos) {
    std::istringstream names(question.substr(of + 4));
    for (std::string name; std::getline(names, name, ',');) usable.push_back(name);
  }
  const int place = who.size() > 3 ? who[3] - '0' : 0;
  const InterfaceUser user = who[0] == 'g' ? user_on_gpu("0000:" + who.substr(1) + ":00.0")
                                           : user_on_cpu(who[1] - '0', place);
  const InterfaceChoice choice = sys.choose(user, usable);
  auto reversed = sys.interfaces();  // the order of the list changes nothing
  std::reverse(reversed.begin(), reversed.end());
  CHECK(choose_interfaces(sys.machine(), reversed, user, usable) == choice);
  if (choice.all.empty()) return "";
  CHECK(choice.primary == choice.all[0]);
  if (choice.backup.empty()) return fmt::format("{}", fmt::join(choice.all, " "));
  CHECK(choice.backup == choice.all[1]);
  return fmt::format("{}+{}", choice.primary,
                     fmt::join(choice.all.begin() + 1, choice.all.end(), " "));
}

void check_interfaces(const std::vector<InterfaceRow>& rows) {
  for (const InterfaceRow& row : rows) {
    const Sys sys(row.interfaces);
    for (const auto& [question, expected] : row.questions) {
      INFO(row.what << ": " << question);
      const std::string text = answer(sys, question) + " ";
      CHECK(text.substr(0, expected.size()) == expected);
      CHECK_FALSE(text.find_first_of(" +", expected.size()) > expected.size());
    }
  }
}

/// Two GPUs and three ranks on the CPU that alternate between two ports, each the other's backup.
Questions by_turns(const std::string& a, const std::string& b) {
  const std::string first = a + "+" + b;
  const std::string second = b + "+" + a;
  return {{"g02", first}, {"g04", second}, {"c0", first}, {"c0.1", second}, {"c0.2", first}};
}

}  // namespace

TEST_CASE("the primary is near and fast, the backup its partner in hardware",
          "[req:2.5][req:2.9][B3]") {
  constexpr const char* kFour = "ens0 03 100 down; ens1 04 100; ens2 05 100; ens3 06 100";
  check_interfaces({
      {"nearest, then another card",
       kPairs,
       {{"g42", "ens1+ens0 ens2 ens3"}, {"g82", "ens2+ens3"}, {"gc2", "ens3+ens2"}}},
      {"the other port of a card",
       "ens1f0 03 100; ens1f1 03.1 100; ens2 04 100",
       {{"c0", "ens1f0+ens1f1 ens2"}}},
      {"two ports of one function", "ib0 05 100; ib1 05 100 port=1", {{"c0", "ib0+ib1"}}},
      {"down, it leaves other pairs as they were",
       kFour,
       {{"c0", "ens1+ens2"},
        {"c0.1", "ens2+ens3"},
        {"c0.2", "ens3+ens2"},
        {"c0.1 of ens1,ens2,ens3", "ens2+ens3"},
        {"c0.2 of ens1,ens2,ens3", "ens3+ens2"},
        {"c0 of ens0", ""}}},
      {"a slow port, however near, is the backup",
       "gpu 02; eno1 03 1; ens7 83 100; veth0 - 10000",
       {{"g02", "ens7+eno1 veth0"}, {"g02 of eno1", "eno1"}}},
      {"farther ones before a slow one",
       "gpu 02; eno1 03 1; ens7 83 100; ens1 04 100; ens8 84 100; veth0 - 10000",
       {{"g02", "ens1+ens7 ens8 eno1 veth0"}}},
      {"a speed that is not told",
       "gpu 42; eth0 02 0; ens6 83 100",
       {{"g42", "ens6+eth0"}, {"c0", "ens6+eth0"}}},
      {"told by none", "eth0 02 0; ens6 83 0", {{"c0", "eth0+ens6"}}},
      {"on USB, whatever the speed",
       "eth0 02 100; ens6 83 100; enxbmc - 100 usb@02; br0 - 100",
       {{"c0", "eth0+ens6 enxbmc br0"}, {"c0 of enxbmc,br0", "enxbmc+br0"}}},
      {"a loopback, one without hardware, one that is down",
       "lo - 0 lo; veth1 - 10; ens1 03 1; ens2 04 1 down",
       {{"c0", "ens1+veth1"}, {"c0 of lo", "lo"}, {"c0 of ens2", ""}}},
      {"nothing with hardware", "lo - 0 lo; veth1 - 10", {{"c0", "veth1"}}},
      {"a tunnel is no way out",
       "eth0 - 10 type=1; wg0 - 0 type=65534; wg1 - 0 type=65534",
       {{"c0", "eth0+wg0"}, {"c0.1", "eth0"}, {"c0.2", "eth0"}}},
  });
  CHECK(Sys(kPairs).choose(user_on_gpu("0000:42:00.0")).reason ==
        "ens1 on 0000:43:00.0 (PIX); backup ens0, another card");
  const InterfaceChoice both = Sys("a 03 9; b 03.1 9").choose(user_on_cpu(0));
  CHECK(has(both.reason, "the other port of the card"));
  CHECK(Sys("a - 1; b - 1").choose(user_on_cpu(0)).reason.find("nothing says") !=
        std::string::npos);
  CHECK(Sys("eth0 02 0; ens6 83 100; br0 - 9").choose(user_on_cpu(0)).for_data == Names{"ens6"});
  CHECK(Sys("eth0 02 0; ens6 83 0; br0 - 9").choose(user_on_cpu(0)).for_data ==
        Names{"eth0", "ens6"});
  // If /sys is hidden, the caller's list of usable names is the only source.
  CHECK(choose_interfaces({}, {}, user_on_cpu(0), {"eth1", "eth0", "eth0"}).all ==
        Names{"eth0", "eth1"});
  CHECK(choose_interfaces({}, {}, user_on_cpu(0)).all.empty());
}

TEST_CASE("a VF, bond, VLAN or IPoIB child is not counted as a port beside the port it uses",
          "[req:2.5][B3]") {
  constexpr const char* kVirtual =
      "ens1f0 03 100; ens1f1 03.1 100; ens1f0v0 03.2 100 vf=03; sf4 - 100 auxiliary@03; "
      "virtio5 - 100 virtio@03; virtio6 - 100 virtio@03";
  check_interfaces({
      {"virtual functions and subfunctions, but not devices of virtio",
       kVirtual,
       {{"c0 of ens1f0,ens1f0v0", "ens1f0 ens1f0v0"},
        {"c0 of ens1f0v0,ens1f1", "ens1f1+ens1f0v0"},
        {"c0 of ens1f0,sf4", "ens1f0 sf4"},
        {"c0 of sf4,ens1f1", "sf4+ens1f1"},
        {"c0 of virtio5,virtio6", "virtio5+virtio6"}}},
      {"a bond stands for its ports, a VLAN for those below it",
       "ens1f0 03 100 part=bond0; ens1f1 03.1 100 part=bond0; bond0 - 200; bond0.7 - 200 on=bond0; "
       "ens2 04 100",
       {{"c0", "bond0+ens2 bond0.7"}, {"c0 of bond0,bond0.7,ens1f1", "bond0 bond0.7 ens1f1"}}},
      {"VLANs, whatever they are called",
       "gpu 02; gpu 04; eth0 05 100; eth1 06 100; eth0.7 - 100 on=eth0; a7 - 100 on=eth0; "
       "a8 - 100 on=eth0",
       by_turns("eth0", "eth1")},
      {"children of IPoIB", "gpu 02; gpu 04; ib0 05 200; child 05 200 parent=ib0; ib1 06 200",
       by_turns("ib0", "ib1")},
      {"a bond beside what is on one of its ports",
       "gpu 02; gpu 04; ens1f0 05 100 part=bond0; ens1f1 05.1 100 part=bond0; ens1f1v0 05.2 100 "
       "vf=05.1; ens2 06 200; bond0 - 200",
       by_turns("bond0", "ens2")},
      {"the second port of a function is none of what is on the first",
       "gpu 02; gpu 04; ib1 05 200 port=1; v0 05.2 200 vf=05", by_turns("ib1", "v0")},
      {"devices of virtio behind one function",
       "gpu 02; gpu 04; of5 05 100 down; of6 05 100 down; virtio5 - 100 virtio@05; "
       "virtio6 - 100 virtio@05",
       by_turns("virtio5", "virtio6")},
      {"VLANs decide no pairs",
       "eth0 03 100; eth1 04 100; eth2 05 100; eth3 06 100; eth2.7 - 100 "
       "on=eth2",
       {{"c0", "eth0+eth1"}, {"c0.1", "eth1+eth0"}, {"c0.2", "eth2+eth3"}, {"c0.3", "eth3+eth2"}}},
      {"what stands in the host for virtual functions comes after their card's uplink",
       "ens1np0 03 100 name=p0; a_vf 03 100 name=pf0vf0; a_sf 03 100 name=c1pf0sf88",
       {{"c0", "ens1np0"}, {"c0.1", "ens1np0"}, {"c0.2", "ens1np0"}}},
      {"a bond is as near as the nearest of its ports",
       "ens1 03 100 part=bond0; ens2 83 100 part=bond0; ens2v0 83.2 100 vf=83; bond0 - 200",
       {{"c0", "bond0"}, {"c1", "bond0"}}},
      {"it is used for each of them",
       "ens1 03 100 part=bond0; ens2 83 100 part=bond0; bond0 - 200; ens3 04 200",
       {{"c0", "bond0"}, {"c1", "bond0"}}},
  });
  for (const NetworkInterface& one : Sys(kVirtual).interfaces()) {
    INFO(one.name);
    REQUIRE(one.ports.size() == 1);
    REQUIRE(one.ports[0].pci);
    CHECK(one.ports[0].pci->bus == 3);  // a device behind the function has the function's address
  }
}

TEST_CASE("all ranks of a machine use interfaces of one link layer, by what /sys says",
          "[req:2.5]") {
  const auto all = [](const char* name) {
    return Questions{{"g02", name}, {"g82", name}, {"c0", name}, {"c1", name}};
  };
  check_interfaces({
      {"InfiniBand first", "gpu 02; gpu 82; eth0 03 100 type=1; ib0 83 100 type=32",
       all("ib0+eth0")},
      {"the faster", "gpu 02; gpu 82; eth0 03 100 type=1; ib0 83 50 type=32", all("eth0+ib0")},
      {"neither", "gpu 02; gpu 82; eth0 03 100 type=1; ib0 83 50 type=32; odd0 84 200 type=65534",
       all("odd0")},
      {"others of the layer first, though they are farther",
       "gpu 02; gpu 82; eth0 03 100 type=1; ib0 83 50 type=32; odd0 84 200 type=65534; "
       "eth1 85 200 type=1; eth2 05 100 type=1",
       {{"g82", "eth1+eth0 eth2 ib0 odd0"}}},
      {"VLANs have no say",
       "gpu 02; ib0 05 200 type=32; eth0 06 100 type=1; eth0.1 - 100 type=1 "
       "on=eth0; eth0.2 - 100 type=1 on=eth0",
       {{"g02", "ib0"}}},
  });
}

TEST_CASE("without hwloc the kernel's lists yield PCI buses with GPUs and network cards",
          "[req:2.1]") {
  Sys sys(kPairs);
  sys.device("0000:05:00.0", "0x010802", 0, "00");            // a disk
  sys.device("0000:06:00.0", "0x030000", 0, "00", "0x1a03");  // a display that is no usable GPU
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

TEST_CASE("ranks on CPUs use all interfaces of their NUMA nodes, in whatever order they are",
          "[req:2.5]") {
  const Sys sys(kPairs);
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
  CHECK(users_of({0, 0, 0, 0, -1, -1, -1, -1}) == even);  // unbound ranks take the least used ports
  CHECK(users_of({-1, -1, -1, -1, 0, 0, 0, 0}) == even);
  CHECK(users_of({0, 1, 0, 0}) == Users{{"ens0", 2}, {"ens1", 1}, {"ens2", 1}});
}

TEST_CASE("a container's way out stays that, by the routes of either version", "[req:2.5]") {
  Sys sys("eth0 - 10 type=1; wg0 - 0 type=65534; docker0 - 20 type=1");
  const std::string head = "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\n";
  const std::string other = "docker0\t000011AC\t00000000\t0001\t0\t0\t0\t0000FFFF\t0 0 0\n";
  const std::string none(32, '0');
  CHECK(sys.choose(user_on_cpu(0)).primary == "docker0");
  SECTION("version 4") {
    sys.file("/proc/net/route",
             head + other + "eth0\t00000000\t010011AC\t0003\t0\t0\t0\t00000000\t0 0 0");
  }
  SECTION("version 6") {
    sys.file("/proc/net/route", head + other);
    sys.file("/proc/net/ipv6_route", "fe80" + none.substr(4) + " 40 " + none + " 00 " + none +
                                         " 0 1 0 1 docker0\n" + none + " 00 " + none + " 00 " +
                                         none + " 0 1 0 3 eth0\n");
  }
  SECTION("a refusal, which leads to the loopback, is none") {
    Sys loopback("lo - 0 lo; eth0 - 10");
    loopback.file("/proc/net/ipv6_route", none + " 00 " + none + " 00 " + none +
                                              " ffffffff 00000001 00000000 00200200 lo\n");
    CHECK(loopback.choose(user_on_cpu(0), {"lo", "eth0"}).primary == "eth0");
    sys.file("/proc/net/route", "eth0 00000000 010011AC 0003 0 0 0 00000000 0 0 0\n");
  }
  for (int rank = 0; rank < 3; ++rank) CHECK(sys.choose(user_on_cpu(0, rank)).primary == "eth0");
  CHECK(sys.choose(user_on_cpu(0)).backup == "docker0");
  // Hardware interfaces precede the default route's interface.
  sys.interface("ens1", "0000:03:00.0", 0, "00", 100'000);
  CHECK(sys.choose(user_on_cpu(0)).primary == "ens1");
  CHECK(sys.choose(user_on_cpu(0)).backup == "eth0");
}

TEST_CASE("this process's own interfaces are found, a second request reads nothing again",
          "[req:2.5]") {
  const Sys sys(kPairs);
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
  Settings settings;
  settings.topo_file = files.root() + "/machine.xml";
  const auto chosen = [&](const InterfaceUser& user) {
    ProcessMachine process;  // a file is read once in a process
    const ScopedProcessMachine scoped(process);
    return own_adapter(user, settings);
  };
  Machine machine = machine_of("n( ) n( ib100#1 ib100#2 )");
  machine.nics[0].port = 2;
  REQUIRE(dump_machine(machine, settings.topo_file).ok());
  const auto first = chosen({std::nullopt, 1, 0, {1, 1}});
  const auto second = chosen({std::nullopt, 1, 1, {1, 1}});
  REQUIRE(first.ok());
  REQUIRE(second.ok());
  CHECK(first->name == "ib0");
  CHECK(first->port == 2);
  CHECK(second->name == "ib1");
  CHECK(second->port == 1);
  REQUIRE(dump_machine(machine_of("n( )"), settings.topo_file).ok());
  const auto none = chosen(user_on_cpu(0));
  REQUIRE_FALSE(none.ok());
  CHECK(none.error().code() == ErrorCode::system);
  CHECK(has(none.error().message(), "no RDMA port"));
  files.file("/machine.xml", "<");
  CHECK_FALSE(chosen(user_on_cpu(0)).ok());
}

}  // namespace oriel::topo
