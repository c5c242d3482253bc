// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
// Tests the network cards of GPUs and CPU ranks, and their backups: tables of machines.
#include "topo/choice/nic_choice.hpp"

#include <catch2/catch.hpp>
#include <fmt/format.h>

#include "topo/choice/nic_layer.hpp"
#include "topo/machine/machines.hpp"

namespace oriel::topo {
namespace {

std::string times(int count, const std::string& text) {
  std::string all;
  while (count-- > 0) all += text;
  return all;
}

/// Returns a socket of 4 GPUs, each below a switch with one port, and `more` beside the switches.
std::string socket_of(const std::string& port, const std::string& more = "") {
  return "n( " + times(4, "b( g " + port + " ) ") + more + " ) ";
}

/// Returns two sockets with `ports` and `others`, and two dual-port storage cards at the second.
std::string with_storage(const std::string& ports, const std::string& others) {
  const std::string storage = "eth200#50 eth200+#50 eth200#51 eth200+#51 ";
  return fmt::format("n( {} ) n( {} {})", ports, others, storage);
}

struct Row {
  const char* what;
  std::string machine;
  std::string expected;  // nics_text()
};

void check_rows(const std::vector<Row>& rows) {
  for (const Row& row : rows) {
    INFO(row.what << ": " << row.machine);
    CHECK(nics_text(machine_of(row.machine)) == row.expected);
  }
}

}  // namespace

TEST_CASE("each device gets the nearest port that leaves it the most", "[req:2.5]") {
  check_rows({
      {"a GPU with a choice leaves the port to one without", "?( g? g ib400 ) ?( ib400 )",
       "1/0 0/1 |"},
      {"the same, listed the other way", "?( g g? ib400 ) ?( ib400 )", "0/1 1/0 |"},
      {"three GPUs change for none to be idle", "n( b( b( g b( g b( g ib400 ) ib400 ) ) ib400 ) )",
       "2/1 0/1 1/0 | 0/1"},
      {"shared in balance", "n( g g g g ib400 )", "0/- 0/- 0/- 0/- | 0/-"},
      {"of equally near ones the faster has more users", "n( g g g g ib100 ib400 )",
       "1/0 1/0 1/0 0/1 | 1/0"},
      {"half of it is more", "n( g g ib100 ib400 )", "1/0 1/0 | 1/0"},
      {"half of it is as much", "n( g g ib200 ib400 )", "1/0 0/1 | 1/0"},
      {"a speed that is not known is slow", "n( g g g ib0 ib400 )", "1/0 1/0 1/0 | 1/0"},
      {"none is known", "n( g g g ib0 ib0 )", "0/1 1/0 0/1 | 0/1"},
      {"the port's own function, also where a virtual one is listed before it",
       "n( g g ib400@20 ib400v@10 ib400@30 )", "1/2 2/1 | 1/2"},
      {"unknown where the layer's is known", "n( b( g ib0 ) b( g ib200 ) )", "1/0 1/0 | 1/0"},
      {"own ports rather than a faster one far away",
       socket_of("ib50") + socket_of("ib50", "ib400"), "0/1 1/0 2/3 3/2 4/5 5/4 6/7 7/6 | 0/1 8/4"},
      {"the same of another layer", socket_of("ib50") + socket_of("ib50", "eth400"),
       "0/1 1/0 2/3 3/2 4/5 5/4 6/7 7/6 | 0/1 4/5"},
      {"400 shared by 8 is more", socket_of("ib49") + socket_of("ib49", "ib400"),
       "8/0 8/1 8/2 8/3 8/4 8/5 8/6 8/7 | 8/0 8/4"},
      {"the same of another layer", socket_of("ib10") + socket_of("ib10", "eth400"),
       "8/0 8/1 8/2 8/3 8/4 8/5 8/6 8/7 | 8/0 8/4"},
      {"a NUMA node's ranks keep to what GPUs use",
       socket_of("ib200") + socket_of("ib200", "eth400"),
       "0/1 1/0 2/3 3/2 4/5 5/4 6/7 7/6 | 0/1 4/5"},
      {"a slow one is used where nothing else is", "n( g g ib400! eth10 )", "1/- 1/- | 1/-"},
      {"a slow one is no primary, however near", "n( g eth10 ) n( ib400 )", "1/0 | 1/0 1/0"},
      {"wherever other GPUs are", "n( g g ib10 ib100 ) n( ib10 )", "1/0 1/0 | 1/0 1/2"},
      {"beside a slow port alone", "n( g g ib10 ib100 ) n( g g g ib10 )",
       "1/0 1/0 1/2 1/2 1/2 | 1/0 1/2"},
  });
}

TEST_CASE(
    "all primaries of a machine are of one link layer, which leaves no GPU much less than half",
    "[req:2.5]") {
  check_rows({
      {"two layers", "n( b( g g eth100 ib200 ) ) n( b( g g ib200 ) )", "1/2 1/2 2/1 2/1 | 1/2 2/1"},
      {"also where the other layer is nearer to some",
       "n( b( g g eth100 ib200! ) ) n( b( g g ib200 ) )", "2/0 2/0 2/0 2/0 | 2/0 2/0"},
      {"2.5 for each instead of 50", "n( b( g g eth100 ib200! ) ) n( b( g g ib10 ) )",
       "0/2 0/2 0/2 0/2 | 0/2 0/2"},
      {"cards with a port of each", "n( b( g ib200 eth25+ ) b( g ib200 eth25+ ) )",
       "0/2 2/0 | 0/2"},
      {"one for all, though that is shared", "n( g g ib400 eth200 )", "0/1 0/1 | 0/1"},
      {"of one layer both are used", "n( g g ib400 ib200 )", "0/1 1/0 | 0/1"},
      {"faster cards far away",
       with_storage("b( g ib200 ) b( g ib200 )", "b( g ib200 ) b( g ib200 )"),
       "0/1 1/0 2/3 3/2 | 0/1 2/3"},
      {"a port that dies moves nobody to another layer",
       with_storage("b( g ib200! ) b( g ib200 )", "b( g ib200 ) b( g ib200 )"),
       "1/2 1/3 2/3 3/2 | 1/2 2/3"},
      {"nor do three, which tell no speed then",
       with_storage("b( g ib10! ) b( g ib10! )", "b( g ib10! ) b( g ib200 )"),
       "3/4 3/5 3/6 3/7 | 3/4 3/5"},
      {"all are dead", with_storage("b( g ib200! ) b( g ib200! )", "b( g ib200! ) b( g ib200! )"),
       "4/5 6/7 5/4 7/6 | 4/5 6/7"},
      {"half have one near", with_storage("b( g ib200 ) b( g ib200 )", "b( g ) b( g )"),
       "0/1 1/0 0/1 1/0 | 0/1 1/0"},
      {"as many have one near: 400 against 300", "n( g ib200 ib200 eth300 )", "0/1 | 0/1"},
      {"against 450", "n( g ib200 ib200 eth300 eth150 )", "2/3 | 2/3"},
      {"a dead port counts as the slowest", "n( g ib200 ib10! eth300 )", "0/2 | 0/2"},
      {"its 400 against 450", "n( g ib200 ib10! eth300 eth150 )", "2/3 | 2/3"},
      {"most ports are dead", "n( g ib200 eth200 eth200! eth200! )", "0/1 | 0/1"},
      {"half of them", "n( g ib200 eth200 eth200! eth200! eth200 )", "1/4 | 1/4"},
      {"unknown speeds", "n( g eth25 odd0 odd0 odd0 )", "0/1 | 0/1"},
      {"InfiniBand before Ethernet", "n( g eth25 odd0 odd0 odd0 ib25 )", "4/0 | 4/0"},
      {"440 together, but slow", "n( g eth400 eth400v " + times(11, "ib40 ") + ")", "0/2 | 0/2"},
      {"a virtual function counts for nothing", "n( g eth400 eth400v ib200 )", "0/2 | 0/2"},
      {"as fast together", "n( g eth400 eth400v ib200 ib200 )", "2/3 | 2/3"},
      {"100 more", "n( g eth400 eth400v ib200 ib200 eth100 )", "0/4 | 0/4"},
      {"6.25 for three against 50 for each", "n( g g g eth25 eth25+ ) n( g ib200 )",
       "2/0 2/1 2/0 2/1 | 2/0 2/1"},
      {"12.5 against 27.5: less than half", "n( g g g eth25 eth25+ ) n( g ib110 )",
       "2/0 2/1 2/0 2/1 | 2/0 2/1"},
      {"against 25", "n( g g g eth25 eth25+ ) n( g ib100 )", "0/1 1/0 0/1 1/0 | 0/1 1/0"},
      {"also where one port is dead", "n( g g g eth25 eth25+! ) n( g ib100 )",
       "0/2 0/2 0/2 0/2 | 0/2 0/2"},
  });
}

TEST_CASE("a backup is the partner, else of the primary's layer, then not slow, then near",
          "[req:2.5][B3]") {
  check_rows({
      {"below one switch", "n( b( g g ib400 ib400 ) ) n( b( g g ib400 ib400 ) )",
       "0/1 1/0 2/3 3/2 | 0/1 2/3"},
      {"the partner first, then where the fewest do", "n( b( g g g ib400 ) ib400 ib400 ib400 )",
       "0/1 0/2 0/3 | 0/1"},
      {"partners are taken first", "n( b( g g ib400 ) ib400 ib400 b( g ib400 ) )",
       "0/1 0/3 3/2 | 0/1"},
      {"the nearest where the partner is dead", "n( g ib400 ib400! ib400 )", "0/2 | 0/2"},
      {"near", "n( b( g g ib400 ) ib400 ) n( ib400 )", "0/1 0/1 | 0/1 2/0"},
      {"a slow partner", "n( b( g g ib400 ) ib40 ) n( ib400 )", "0/2 0/2 | 0/2 2/0"},
      {"of another layer", "n( b( g g ib400 ) eth400 ) n( ib400 )", "0/2 0/2 | 0/2 2/0"},
      {"slow, but of the layer", "n( b( g g ib400 ) eth400 ib40 )", "0/2 0/2 | 0/2"},
      {"of another layer is better than none", "n( g g ib400 eth10 )", "0/1 0/1 | 0/1"},
      {"none is on another port", "n( g g ib400#7 ib400=#7 ib400v#7 )", "0/- 0/- | 0/-"},
  });
}

TEST_CASE("ports are paired by card, then near each other, by place alone", "[B3]") {
  struct Pairs {
    const char* machine;
    std::vector<int> partners;
  };
  for (const Pairs& row : {
           Pairs{"n( ib400 )", {-1}},
           Pairs{"n( ib400 ib400 ib400 )", {1, 0, -1}},
           Pairs{"n( ib400 ib400! ib400 )", {-1, -1, -1}},
           // Sockets with an equal or unequal number of cards.
           Pairs{"n( ib400 ib400 ib400 ) n( ib400 ib400 ib400 )", {1, 0, 5, 4, 3, 2}},
           Pairs{"n( ib400 ) n( ib400 ib400 ) n( ib400 )", {3, 2, 1, 0}},
           Pairs{"n( ib400 ) n( ib400 ) n( ib400 ib400 ) n( ib400 )", {1, 0, 3, 2, -1}},
           Pairs{"n( ib400 ib400 ib400 ib400 ib400 ) n( ib400 ib400 )", {1, 0, 3, 2, -1, 6, 5}},
           // Two switches whose cards alternate by address: of one layer, of two layers, and one
           // card that differs.
           Pairs{"n( b( ib400@40 ib400@42 ) b( ib400@41 ib400@43 ) )", {2, 3, 0, 1}},
           Pairs{"n( b( eth400@40 eth400@42 ) b( ib400@41 ib400@43 ) )", {2, 3, 0, 1}},
           Pairs{"n( b( eth400@40 eth400@42 ) b( ib400@41 eth400@43 ) )", {2, -1, 0, -1}},
           // Cards with several ports, on one bus and on two, some of them down.
           Pairs{"n( ib400#7 ib400#7 ib400 ib400 )", {1, 0, 3, 2}},
           Pairs{"n( ib400#7 ib400#7! ib400 ib400 )", {-1, -1, 3, 2}},
           Pairs{"n( ib400#7 ib400#5 ib400#7 ib400#6 )", {2, 3, 0, 1}},
           Pairs{"n( ib400#7 ib400#8 ib400+#8 ib400+#8 ib400+#8 )", {-1, 2, 1, 4, 3}},
           Pairs{"n( ib400#7 ib400#8 ib400+#8 ib400+#8 )", {-1, 2, 1, -1}},
           Pairs{"n( ib400#7 ib400#8! ib400+#8 ib400+#8 ib400+#8 )", {-1, -1, -1, 4, 3}},
           Pairs{"n( ib400#7 ib400#8! ib400+#8 ib400+#8 )", {-1, -1, -1, -1}},
           // Devices that share one port.
           Pairs{"n( ib400#7 ib400=#7 )", {-1, -1}},
           Pairs{"n( ib400#7 ib400v#7 )", {-1, -1}},
       }) {
    INFO(row.machine);
    CHECK(partners_by_place(machine_of(row.machine)) == row.partners);
  }
  // Two card numbers are two cards, although both are in one slot.
  const Machine slot = machine_of("n( ib400#11 ib400+#12 ib400#11 )");
  CHECK_FALSE(same_card(slot.nics[0], slot.nics[1]));
  CHECK(same_card(slot.nics[0], slot.nics[2]));
}

TEST_CASE("ports that die leave the pairs of others as they were", "[B3]") {
  for (const bool dual : {false, true}) {
    Machine machine = machine_of("n( " + times(8, "ib400 ") + ")");
    for (std::size_t i = 0; dual && i < 8; ++i) machine.nics[i].card = 100 + i / 2;
    for (unsigned dead = 0; dead < 1U << 8; ++dead) {
      INFO("dead: " << dead << (dual ? ", cards with two ports" : ", cards with one port"));
      for (unsigned i = 0; i < 8; ++i) machine.nics[i].active = (dead >> i & 1) == 0;
      const auto partners = partners_by_place(machine);
      for (unsigned i = 0; i < 8; ++i) {
        const bool pair_lives = machine.nics[i].active && machine.nics[i ^ 1].active;
        REQUIRE(partners[i] == (pair_lives ? static_cast<int>(i ^ 1) : -1));
      }
    }
  }
}

TEST_CASE("the reason names what was passed by, who shares, and the backup", "[req:2.5]") {
  const auto reason = [](const char* machine) {
    return choose_nics(machine_of(machine))[0].reason;
  };
  CHECK(reason("n( g ib400 ib400 )") ==
        "ib0 is one of 2 equally near (PHB); backup ib1, another card");
  CHECK(reason("n( g ib400#7 ib400+#7 )") ==
        "ib0 is one of 2 equally near (PHB); backup ib1, the other port of its card");
  CHECK(reason("n( b( g g ib400 ) )") ==
        "ib0 is the nearest (PIX), shared with 1 other; no other fault domain to fall back on");
  CHECK(reason("n( b( g eth100 ib200 ) ) n( ib200 )") ==
        "ib1 is the nearest of the link layer that all use (PIX); backup ib2, another card");
  CHECK(reason("n( g eth10 ) n( ib400 )") ==
        "ib1 is the nearest of those fast enough (SYS); backup eth0, another card");
  CHECK(reason("n( g ib400! )") == "there is no active NIC");
}

TEST_CASE("among NICs that are equally near by PCI, the distances of NUMA nodes decide",
          "[req:2.5]") {
  Machine machine = machine_of("n( g ) n( ib400#1 ) n( ib400#2 ) n( ib400#3 )");
  machine.numa[0].distances = {10, 32, 12, 21};
  machine.numa[1].distances = {32, 10, 21, 12};
  machine.numa[2].distances = {12, 21, 10, 32};
  machine.numa[3].distances = {21, 12, 32, 10};
  const auto choices = choose_nics(machine);
  CHECK(choices[0].primary == 1);
  CHECK(choices[0].distance == Distance::system);
  CHECK(choices[0].reason.starts_with("ib1 is the nearest (SYS)"));
}

TEST_CASE("NUMA nodes without processors have no say in the link layer, and no NIC", "[req:2.5]") {
  for (const bool known : {true, false}) {
    Machine machine = machine_of("n( eth100 ) n( ib100 ) n( ) n( )");
    for (std::size_t node = 0; node < 4; ++node) {  // 2 and 3: memory near Ethernet
      if (!known || node >= 2) machine.numa[node].cpus.clear();
      machine.numa[node].distances = {10, 21, 12, 12};
    }
    machine.numa[1].distances = {21, 10, 24, 24};
    CHECK(layer_for_all(machine, PortSpeeds(machine)) ==
          (known ? Nic::Layer::infiniband : Nic::Layer::ethernet));
    const auto choices = choose_nics_of_numa_nodes(machine);
    CHECK(primaries(choices) == (known ? std::vector<int>{1, 1, -1, -1} : std::vector<int>(4, 0)));
  }
}

}  // namespace oriel::topo
