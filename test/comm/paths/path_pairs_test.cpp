// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "comm/paths/path_pairs.hpp"

#include <algorithm>
#include <cstdio>
#include <random>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <arpa/inet.h>
#include <catch2/catch.hpp>

#include "comm/paths/path_networks.hpp"
#include "topo/sources/temporary_tree.hpp"

// Tests which interfaces of two ranks are joined by a path (3.14).
using namespace oriel;
using namespace oriel::comm;

namespace {

using Pairs = std::vector<PathPair>;

std::array<std::uint8_t, 16> bytes_of(const std::string& text) {
  std::array<std::uint8_t, 16> bytes{};
  const int family = text.find(':') == std::string::npos ? AF_INET : AF_INET6;
  if (::inet_pton(family, text.c_str(), bytes.data()) != 1) throw std::runtime_error(text);
  return bytes;
}

IpNetwork network(const std::string& text) {
  const std::size_t slash = text.find('/');
  return {static_cast<std::uint8_t>(std::stoul(text.substr(slash + 1))),
          bytes_of(text.substr(0, slash))};
}

PathInterface interface(const std::string& address, const std::vector<std::string>& networks) {
  PathInterface made;
  made.family = address.find(':') == std::string::npos ? 4 : 6;
  made.address = bytes_of(address);
  for (const std::string& one : networks) made.networks.push_back(network(one));
  return made;
}

/// Returns the interface of host `host` that is attached to network `number`.
PathInterface near(int number, int host) {
  const std::string net = "10." + std::to_string(number) + ".0.";
  return interface(net + std::to_string(host), {net + "0/24"});
}

/// Returns an interface of a network in which each host has its own subnet, joined by a router.
PathInterface routed(int number, int host) {
  const std::string net = "10." + std::to_string(number) + ".";
  const std::string part = net + std::to_string(host) + ".";
  return interface(part + "2", {net + "0.0/16", part + "0/24"});
}

Pairs exchanged(Pairs pairs) {
  for (PathPair& pair : pairs) std::swap(pair.own, pair.far);
  return pairs;
}

}  // namespace

TEST_CASE("interfaces of the same network are joined", "[req:3.14]") {
  const Pairs in_order{{0, 0}, {1, 1}}, crossed{{0, 1}, {1, 0}}, crossed_back{{1, 0}, {0, 1}};
  CHECK(pair_paths({near(1, 1), near(2, 1)}, {near(1, 2), near(2, 2)}, true) == in_order);
  CHECK(pair_paths({near(1, 1), near(2, 1)}, {near(2, 2), near(1, 2)}, true) == crossed);
  // One end determines the order of the pairs.
  CHECK(pair_paths({near(1, 1), near(2, 1)}, {near(2, 2), near(1, 2)}, false) == crossed_back);
  CHECK(pair_paths({routed(1, 1), routed(2, 1)}, {routed(2, 2), routed(1, 2)}, true) == crossed);
  // Cables between two hosts (/32 routes), without a network around them.
  CHECK(pair_paths({interface("10.1.0.1", {"10.1.0.2/32"}), interface("10.2.0.1", {"10.2.0.2/32"})},
                   {interface("10.2.0.2", {"10.2.0.1/32"}), interface("10.1.0.2", {"10.1.0.1/32"})},
                   true) == crossed);
  CHECK(pair_paths({routed(1, 1), near(2, 1)}, {near(2, 2), routed(1, 2)}, true) == crossed);
  const auto ipv6 = [](const std::string& net, const std::string& host) {
    return interface(net + "::" + host, {net + "::/64"});
  };
  CHECK(pair_paths({ipv6("fd00:0:0:1", "1"), ipv6("fd00:0:0:2", "1")},
                   {ipv6("fd00:0:0:2", "2"), ipv6("fd00:0:0:1", "2")}, true) == crossed);
  // Equal bits in another address family are another network.
  CHECK(pair_paths({interface("10.1.0.1", {"10.1.0.0/24"}), near(2, 1)},
                   {near(2, 2), interface("a01:2::", {"a01::/24"})}, true) == crossed);
  CHECK(pair_paths({near(1, 1)}, {interface("a01:2::", {"a01::/24"}), near(1, 2)}, true) ==
        Pairs{{0, 1}});
}

TEST_CASE("interfaces that no network distinguishes are paired in order", "[req:3.14]") {
  const Pairs in_order{{0, 0}, {1, 1}};
  const std::vector<PathInterface> none(2);
  CHECK(pair_paths(none, none, true) == in_order);
  CHECK(pair_paths(none, {near(2, 2), near(1, 2)}, false) == in_order);
  CHECK(pair_paths({near(1, 1), near(1, 2)}, {near(1, 3), near(1, 4)}, true) == in_order);
  // Different networks, joined only by the default route.
  CHECK(pair_paths({near(1, 1), near(2, 1)}, {near(3, 1), near(4, 1)}, false) == in_order);
  // A route that only this host has.
  auto one_way = interface("10.9.0.1", {"10.2.0.0/24"});
  CHECK(pair_paths({near(1, 1), one_way}, {near(2, 2), near(3, 2)}, true) == in_order);
}

TEST_CASE("interfaces are paired by network as far as possible, and the rest in order",
          "[req:3.14]") {
  CHECK(pair_paths({near(1, 1), near(2, 1), near(3, 1)}, {near(4, 2), near(5, 2), near(1, 2)},
                   true) == Pairs{{0, 2}, {1, 0}, {2, 1}});
  // The first interface here matches both, the second only one.
  auto both = near(1, 1);
  both.networks.push_back(network("10.2.0.0/24"));
  auto far = near(2, 2);
  far.networks.push_back(network("10.1.0.0/24"));
  CHECK(pair_paths({both, near(1, 3)}, {near(1, 2), far}, true) == Pairs{{0, 1}, {1, 0}});
  // Nested networks: packets take the smaller one.
  CHECK(pair_paths({interface("10.3.0.1", {"10.0.0.0/8"}), near(1, 1)},
                   {near(1, 2), interface("10.4.0.1", {"10.0.0.0/8"})},
                   true) == Pairs{{0, 1}, {1, 0}});
  // Lists of different lengths.
  CHECK(pair_paths({near(1, 1), near(2, 1)}, {near(2, 2)}, true) == Pairs{{1, 0}});
  CHECK(pair_paths({near(2, 2)}, {near(1, 1), near(2, 1)}, true) == Pairs{{0, 1}});
  CHECK(pair_paths({near(1, 1), near(2, 1)}, {near(3, 2)}, false) == Pairs{{0, 0}});
  CHECK(pair_paths({near(3, 1), near(2, 1)}, {near(1, 2), near(2, 2), near(3, 2)}, true) ==
        Pairs{{0, 2}, {1, 1}});
}

TEST_CASE("both ends choose the same paths, whatever interfaces they have", "[req:3.14]") {
  std::mt19937 random(20);
  const auto draw = [&] {
    std::vector<PathInterface> list(1 + random() % 4);
    for (PathInterface& one : list) {
      if (random() % 6 == 0) continue;
      one = near(static_cast<int>(random() % 4), static_cast<int>(random() % 200));
      if (random() % 2 == 0) one = routed(static_cast<int>(random() % 4), 1);
      for (auto more = random() % 3; more != 0; --more) {
        one.networks.push_back(network("10." + std::to_string(random() % 4) + ".0.0/16"));
      }
    }
    return list;
  };
  std::size_t not_in_order = 0;
  for (int run = 0; run < 5000; ++run) {
    const auto one = draw(), other = draw();
    const bool by_one = random() % 2 == 0;
    const Pairs pairs = pair_paths(one, other, by_one);
    REQUIRE(pairs == exchanged(pair_paths(other, one, !by_one)));
    REQUIRE(pairs.size() == std::min(one.size(), other.size()));
    std::set<int> own, far;
    for (const PathPair& pair : pairs) {
      REQUIRE((pair.own < one.size() && pair.far < other.size()));
      own.insert(pair.own);
      far.insert(pair.far);
      not_in_order += pair.own != pair.far;
    }
    REQUIRE((own.size() == pairs.size() && far.size() == pairs.size()));
    // One end determines the order; the set of pairs does not depend on it.
    REQUIRE(std::is_sorted(pairs.begin(), pairs.end(), [&](const auto& a, const auto& b) {
      return by_one ? a.own < b.own : a.far < b.far;
    }));
  }
  CHECK(not_in_order > 1000);
}

TEST_CASE("an interface leads to the networks of its routes", "[req:3.14]") {
  const topo::TemporaryTree tree;
  const topo::FileTree files(tree.root());
  const auto address = boot::SocketAddress::ipv4({10, 78, 1, 2}, 0);
  CHECK(describe_interface(files, "net1", address) == interface("10.78.1.2", {}));
  // Routes that must be ignored: a default route, a route that is down, a reject route, an invalid
  // mask, and invalid numbers.
  tree.file("/proc/net/route",
            "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT\n"
            "net0\t00004D0A\t01014D0A\t0003\t0\t0\t0\t0000FFFF\t0\t0\t0\n"
            "net1\t00000000\t01014E0A\t0003\t0\t0\t0\t00000000\t0\t0\t0\n"
            "net1\t00014E0A\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n"
            "net1\t00004E0A\t01014E0A\t0003\t0\t0\t0\t0000FFFF\t0\t0\t0\n"
            "net1\t00004E0A\t02014E0A\t0003\t0\t0\t9\t0000FFFF\t0\t0\t0\n"
            "net1\t0500580A\t01014E0A\t0007\t0\t0\t0\tFFFFFFFF\t0\t0\t0\n"
            "net1\t0000600A\t01014E0A\t0002\t0\t0\t0\t0000FFFF\t0\t0\t0\n"
            "net1\t0000610A\t00000000\t0201\t0\t0\t0\t0000FFFF\t0\t0\t0\n"
            "net1\t0000FEA9\t00000000\t0001\t0\t0\t0\t0000FFFF\t0\t0\t0\n"
            "net1\t000000E0\t00000000\t0001\t0\t0\t0\t000000F0\t0\t0\t0\n"
            "net1\t0100620A\t00000000\t0001\t0\t0\t0\tFF0000FF\t0\t0\t0\n"
            "net1\tsome\t00000000\t0001\t0\t0\t0\t0000FFFF\t0\t0\t0\n"
            "net1\t0000630A\n");
  CHECK(describe_interface(files, "net1", address) ==
        interface("10.78.1.2", {"10.78.1.0/24", "10.78.0.0/16", "10.88.0.5/32"}));
  CHECK(describe_interface(files, "net0", boot::SocketAddress::ipv4({10, 77, 1, 2}, 0)) ==
        interface("10.77.1.2", {"10.77.0.0/16"}));
  // Addresses that are equal on every host identify no network.
  CHECK(describe_interface(files, "net1", {}) == PathInterface());
  CHECK(describe_interface(files, "net1", boot::SocketAddress::ipv4({127, 0, 0, 1}, 0)) ==
        PathInterface());
  CHECK(describe_interface(files, "net1", boot::SocketAddress::ipv4({169, 254, 0, 1}, 0)) ==
        PathInterface());
}

TEST_CASE("a truncated list of routes begins with the interface's own networks", "[req:3.14]") {
  const topo::TemporaryTree tree;
  const auto line = [](const std::string& network, bool by_router, const std::string& mask) {
    return "net1\t" + network + "\t00000000\t000" + (by_router ? "3" : "1") + "\t0\t0\t0\t" + mask +
           "\t0\t0\t0\n";
  };
  // Each kind of route exceeds the limit of a message. The table has about 50 KB.
  std::string table;
  for (int i = 0; i < 1000; ++i) {
    char last[16];
    std::snprintf(last, sizeof last, "00%02X%02X14", i % 250, i / 250);
    table += line(last, true, "00FFFFFF");
  }
  table += line("0000000A", false, "000000FF") + line("00014E0A", false, "00FFFFFF");
  for (int i = 0; i < 40; ++i) {
    char last[16];
    std::snprintf(last, sizeof last, "%02X00630A", i);
    table += line(last, false, "FFFFFFFF");
  }
  tree.file("/proc/net/route", table);
  const auto reported = describe_interface(topo::FileTree(tree.root()), "net1",
                                           boot::SocketAddress::ipv4({10, 78, 1, 2}, 0))
                            .networks;
  REQUIRE(reported.size() == PathInterface::kNetworksMost);
  CHECK(reported[0] == network("10.78.1.0/24"));
  CHECK(reported[1] == network("10.0.0.0/8"));
  CHECK(reported[2] == network("10.99.0.0/32"));
  CHECK(reported.back() == network("10.99.0.29/32"));
}

TEST_CASE("an interface leads to the networks of its routes of IPv6", "[req:3.14]") {
  const topo::TemporaryTree tree;
  const std::string none = " 00000000000000000000000000000000 ";
  const auto line = [&](const std::string& network, const std::string& source,
                        const std::string& flags) {
    return network + none + source + none + "00000100 00000001 00000000 " + flags + " net1\n";
  };
  tree.file("/proc/net/ipv6_route",
            line("fd000000000000010000000000000000 40", "00", "00000001") +
                line("fd000000000000000000000000000000 30", "00", "00000003") +
                line("00000000000000000000000000000000 00", "00", "00000003") +
                line("fe800000000000000000000000000000 40", "00", "00000001") +
                line("ff000000000000000000000000000000 08", "00", "00000001") +
                line("fd000000000000010000000000000002 80", "00", "80200001") +
                line("fd000000000000050000000000000000 40", "00", "00200200") +
                line("fd000000000000070000000000000009 80", "00", "00000001") +
                line("fd000000000000060000000000000000 40", "40", "00000001") +
                line("fd0000000000000x0000000000000000 40", "00", "00000001"));
  std::array<std::uint8_t, 16> address = bytes_of("fd00:0:0:1::2");
  CHECK(describe_interface(topo::FileTree(tree.root()), "net1",
                           boot::SocketAddress::ipv6(address, 0, 0)) ==
        interface("fd00:0:0:1::2", {"fd00:0:0:1::/64", "fd00::/48", "fd00:0:0:7::9/128"}));
}
