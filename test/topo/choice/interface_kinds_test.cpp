// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
// 2.5: interfaces of unknown speed, on USB, down, of bonds and of virtual functions.
#include <catch2/catch.hpp>
#include <fmt/format.h>

#include "topo/choice/interface_users.hpp"

namespace oriel::topo {

TEST_CASE("who does not tell a speed, or is on USB, is left for when nothing else is",
          "[req:2.5]") {
  Sys sys;
  sys.gpu("0000:42:00.0", 0, "00");
  sys.interface("eth0", "0000:02:00.0", 0, "00", 0);  // nearer, and before the other
  sys.interface("ens6", "0000:83:00.0", 1, "80", 100'000);
  SECTION("of one layer") {
    CHECK(sys.choose(user_on_gpu("0000:42:00.0")).all == Names{"ens6", "eth0"});
    CHECK(sys.choose(user_on_cpu(0)).for_data == Names{"ens6"});
    sys.file("/sys/class/net/ens6/speed", "-1\n");
    CHECK(sys.choose(user_on_cpu(0)).all == Names{"eth0", "ens6"});
    CHECK(sys.choose(user_on_cpu(0)).for_data == Names{"eth0", "ens6"});
  }
  SECTION("on USB, whatever the speed") {
    sys.file("/sys/class/net/eth0/speed", "100000\n");
    CHECK(sys.choose(user_on_cpu(0)).primary == "eth0");
    const std::string device = "/sys/devices/pci0000:00/0000:00:01.0/0000:02:00.0/usb1/1-3:2.0";
    sys.plain("enxbmc", 100'000);
    sys.link(device + "/subsystem", "../../../../../../../bus/usb");
    sys.link("/sys/class/net/enxbmc/device", "../../.." + device.substr(4));
    sys.plain("br0", 100'000);
    sys.file("/proc/net/route", "br0 00000000 010011AC 0003 0 0 0 00000000 0 0 0\n");
    CHECK(sys.choose(user_on_cpu(0)).all == Names{"eth0", "ens6", "enxbmc", "br0"});
    CHECK(sys.choose(user_on_cpu(0)).for_data == Names{"eth0", "ens6"});
    CHECK(sys.choose(user_on_cpu(0), {"enxbmc", "br0"}).all == Names{"enxbmc", "br0"});
  }
}

TEST_CASE("an interface that is down keeps its place also where others are listed",
          "[req:2.5][B3]") {
  Sys sys;
  for (int card = 0; card < 4; ++card) {
    sys.interface(fmt::format("ens{}", card), fmt::format("0000:0{}:00.0", 3 + card), 0, "00",
                  100'000);
  }
  sys.file("/sys/class/net/ens0/operstate", "down\n");
  for (int rank = 0; rank < 3; ++rank) {
    const InterfaceChoice choice = sys.choose(user_on_cpu(0, rank), {"ens1", "ens2", "ens3"});
    if (choice.primary == "ens2") CHECK(choice.backup == "ens3");
    if (choice.primary == "ens3") CHECK(choice.backup == "ens2");
  }
}

TEST_CASE("a route that refuses, which leads to the loopback, makes it no way out", "[req:2.5]") {
  Sys sys;
  sys.plain("lo", 0);
  sys.file("/sys/class/net/lo/flags", "0x9\n");
  sys.plain("eth0", 10'000);
  const std::string none(32, '0');
  sys.file("/proc/net/ipv6_route",
           none + " 00 " + none + " 00 " + none + " ffffffff 00000001 00000000 00200200 lo\n");
  CHECK(sys.choose(user_on_cpu(0), {"lo", "eth0"}).primary == "eth0");
}

TEST_CASE("what stands in the host for virtual functions comes after their card's uplink",
          "[req:2.5]") {
  Sys sys;
  sys.interface("ens1np0", "0000:03:00.0", 0, "00", 100'000);
  sys.file("/sys/class/net/ens1np0/phys_port_name", "p0\n");
  for (const char* name : {"pf0vf0", "c1pf0sf88"}) {
    sys.interface(fmt::format("a_{}", name), "0000:03:00.0", 0, "00", 100'000);
    sys.file(fmt::format("/sys/class/net/a_{}/phys_port_name", name), fmt::format("{}\n", name));
  }
  for (int rank = 0; rank < 3; ++rank) CHECK(sys.choose(user_on_cpu(0, rank)).primary == "ens1np0");
}

TEST_CASE("a bond is as near as the nearest of its ports, of which it is used for each",
          "[req:2.5]") {
  Sys sys;
  sys.interface("ens1", "0000:03:00.0", 0, "00", 100'000);
  sys.interface("ens2", "0000:83:00.0", 1, "80", 100'000);
  sys.interface("ens2v0", "0000:83:00.2", 1, "80", 100'000);
  sys.virtual_function("0000:83:00.2", "0000:83:00.0");
  sys.plain("bond0", 200'000);
  for (const char* part : {"ens1", "ens2"}) {
    sys.link(fmt::format("/sys/class/net/{}/master", part), "../bond0");
    sys.link(fmt::format("/sys/class/net/bond0/lower_{}", part), fmt::format("../{}", part));
  }
  for (int node = 0; node < 2; ++node) CHECK(sys.choose(user_on_cpu(node)).primary == "bond0");
  sys.interface("ens3", "0000:84:00.0", 0, "00", 200'000);
  CHECK(sys.choose(user_on_cpu(0)).primary == "bond0");  // its address is the first
  CHECK(sys.choose(user_on_cpu(1)).reason.starts_with("bond0 on 0000:03:00.0 (NODE)"));
  CHECK(sys.choose(user_on_cpu(1)).primary == "bond0");  // the other card is far
}

}  // namespace oriel::topo
