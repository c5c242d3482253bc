// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
// Tests the interfaces that ORIEL_PATHS=auto selects (2.5 and 3.14).
#include "comm/paths/path_interfaces.hpp"

#include <catch2/catch.hpp>
#include <fmt/format.h>

#include "boot/session/made_up_interfaces.hpp"
#include "topo/machine/process_machine.hpp"
#include "topo/sources/sys_tree.hpp"

namespace oriel::comm {
namespace {

using Names = std::vector<std::string>;

/// A host with interfaces in /sys, listed by getifaddrs() in this order. Set-up takes the first.
class Host : public topo::SysTree {
 public:
  void card(const std::string& name, int bus, int megabits) {
    interface(name, fmt::format("0000:{:02x}:00.0", bus), 0, "00", megabits);
    file(fmt::format("/sys/class/net/{}/type", name), "1\n");
  }
  void tunnel(const std::string& name) {
    plain(name, 0);
    file(fmt::format("/sys/class/net/{}/type", name), "1\n");
  }
  Names paths(const std::vector<const char*>& listed) const {
    std::vector<boot::MadeUpInterfaces::Entry> entries;
    for (const char* name : listed) {
      const auto number = static_cast<std::uint8_t>(entries.size() + 1);
      entries.push_back(
          {name, IFF_UP | IFF_RUNNING, boot::SocketAddress::ipv4({192, 0, 2, number}, 0)});
    }
    const boot::MadeUpInterfaces scoped(entries);
    topo::MachineSources sources;
    sources.files = tree();
    topo::ProcessMachine process(sources);
    const topo::ScopedProcessMachine known(process);
    Settings settings;
    settings.paths = "auto";
    const auto chosen = choose_paths(settings, {});
    REQUIRE(chosen.ok());
    return *chosen;
  }
};

const Names kOnlySetUp = {""};

TEST_CASE("paths that are chosen end with that of set-up, or leave it out", "[req:3.14]") {
  Host host;
  for (int i = 0; i < 4; ++i) host.card(fmt::format("eth{}", i), 3 + i, 100'000);
  CHECK(host.paths({"eth0"}) == kOnlySetUp);
  CHECK(host.paths({"eth0", "eth1"}) == Names{"eth1", "eth0"});
  CHECK(host.paths({"eth1", "eth2", "eth3"}) == Names{"eth2", "eth3"});
}

TEST_CASE("neither labels nor tunnels are a backup of the port that they lead to",
          "[req:2.5][req:3.14]") {
  Host host;
  host.card("eth0", 3, 100'000);
  host.card("eth1", 4, 100'000);
  host.tunnel("flannel.1");
  CHECK(host.paths({"eth0", "eth1", "eth1:0"}) == Names{"eth1", "eth0"});
  CHECK(host.paths({"eth0", "eth1", "flannel.1"}) == Names{"eth1", "eth0"});
  CHECK(host.paths({"eth0", "flannel.1"}) == kOnlySetUp);
}

TEST_CASE("a slow port is a path only if it is set-up's interface, and then the last one",
          "[req:2.5][req:3.14]") {
  Host host;
  host.card("eth0", 3, 100'000);
  host.card("mgmt0", 4, 1'000);
  host.card("mgmt1", 5, 1'000);
  CHECK(host.paths({"eth0", "mgmt0"}) == kOnlySetUp);
  CHECK(host.paths({"eth0", "mgmt0", "mgmt1"}) == kOnlySetUp);
  CHECK(host.paths({"mgmt0", "eth0", "mgmt1"}) == Names{"eth0", "mgmt0"});
  host.card("eth1", 6, 100'000);
  CHECK(host.paths({"mgmt0", "eth0", "eth1"}) == Names{"eth0", "eth1"});
  CHECK(host.paths({"eth0", "mgmt0", "eth1"}) == Names{"eth1", "eth0"});
}

TEST_CASE("in a container, where nothing has hardware, the way out is one of two paths",
          "[req:2.5][req:3.14]") {
  Host host;
  for (const char* name : {"eth0", "eth1"}) {
    host.plain(name, 10'000);
    host.file(fmt::format("/sys/class/net/{}/type", name), "1\n");
  }
  host.tunnel("flannel.1");
  host.file("/proc/net/route", "eth0 00000000 010011AC 0003 0 0 0 00000000 0 0 0\n");
  CHECK(host.paths({"eth0", "eth1", "flannel.1"}) == Names{"eth1", "eth0"});
  CHECK(host.paths({"eth0", "flannel.1"}) == kOnlySetUp);
}

}  // namespace
}  // namespace oriel::comm
