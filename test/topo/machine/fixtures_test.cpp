// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
// Compares the decisions for each fixture with the `expected` file beside it.
#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <random>
#include <set>

#include <catch2/catch.hpp>

#include "topo/choice/nic_choice.hpp"
#include "topo/choice/paths.hpp"
#include "topo/choice/reach.hpp"
#include "topo/machine/fixture.hpp"
#include "topo/machine/machine_file.hpp"
#include "topo/machine/machines.hpp"
#include "topo/xml/nccl_xml.hpp"

namespace oriel::topo {
namespace {

/// Compares `text` with the file of a fixture, or writes the file if ORIEL_UPDATE_FIXTURES=1.
void check_result(const std::string& name, const std::string& file_name, const std::string& text) {
  const char* const update = std::getenv("ORIEL_UPDATE_FIXTURES");
  if (update != nullptr && *update == '1') {
    std::ofstream(fixture_path(name, file_name)) << text;
    return;
  }
  CHECK(fixture_text(name, file_name) == text);
}

/// Returns the fixture's description of itself: "composed: " or "captured, ", and its origin.
std::string words_of(const std::string& name) {
  const std::string text = fixture_text(name, "hwloc.xml");
  const std::string mark = "<info name=\"Fixture\" value=\"";
  const std::size_t begin = text.find(mark);
  REQUIRE(begin != std::string::npos);
  const std::size_t from = begin + mark.size();
  return text.substr(from, text.find('"', from) - from);
}

/// Returns true if a device with NIC `own` could use `other` instead: active, of the same link
/// layer, and not slower.
bool could_have(const Nic& own, const Nic& other) {
  return other.active && other.layer == own.layer && other.gbps >= own.gbps;
}

}  // namespace

TEST_CASE("teams, rails, NICs with backups and paths of every fixture are as expected",
          "[req:2.9]") {
  for (const std::string& name : fixture_names()) {
    INFO(name);
    const Machine machine = load_fixture(name);
    const Status whole = check(machine);
    REQUIRE((whole.ok() ? "ok" : whole.error().to_string()) == "ok");
    CHECK(canonical(machine) == machine);
    CHECK(load_fixture(name) == machine);
    for (unsigned seed = 0; seed < 5; ++seed) CHECK(canonical(shuffled(machine, seed)) == machine);
    check_result(name, "expected", "# " + words_of(name) + "\n" + decisions_text(machine));
  }
}

TEST_CASE("a machine with two H200, captured in NCCL's format, has one team and its links",
          "[req:2.9]") {
  const std::string path = fixture_path("../captured/h200-2", "nccl.xml");
  const auto machine = read_machine_file(path);
  REQUIRE((machine.ok() ? "ok" : machine.error().to_string()) == "ok");
  REQUIRE(machine->gpus.size() == 2);
  CHECK(machine->gpus[0].switch_links == 18);
  CHECK(machine->gpus[0].architecture == 90);
  CHECK(reach_lists(*machine) == std::vector<std::vector<int>>{{0, 1}, {0, 1}});
  const Path there = path_between(*machine, 0, 1);
  CHECK(there.kind == PathKind::nvlink);
  CHECK(there.hops == 2);
  CHECK(machine->nics.empty());
}

TEST_CASE("every fixture is written in NCCL's format as expected, and read again", "[req:2.7]") {
  for (const std::string& name : fixture_names()) {
    INFO(name);
    const Machine machine = load_fixture(name);
    check_result(name, "nccl.xml",
                 "<!-- " + words_of(name) + "\n     What oriel-topo writes for the fixture " +
                     name + ". -->\n" + write_nccl_xml(machine));
    const auto read = read_machine_file(fixture_path(name, "nccl.xml"));
    REQUIRE((read.ok() ? "ok" : read.error().to_string()) == "ok");
    CHECK(write_nccl_xml(*read) == write_nccl_xml(machine));
  }
}

TEST_CASE("every fixture's description is a file that can be given in hwloc's format",
          "[req:2.7]") {
  for (const std::string& name : fixture_names()) {
    INFO(name);
    const auto read = read_machine_file(fixture_path(name, "hwloc.xml"));
    REQUIRE((read.ok() ? "ok" : read.error().to_string()) == "ok");
    const Machine machine = load_fixture(name);
    CHECK(read->numa == machine.numa);
    CHECK(read->pci == machine.pci);
    // hwloc's format does not distinguish MIG instances.
    std::set<PciAddress> addresses;
    for (const Gpu& gpu : machine.gpus) addresses.insert(*gpu.pci);
    CHECK(read->gpus.size() == addresses.size());
  }
}

TEST_CASE("random machines written in NCCL's format and read again have the same reach and paths",
          "[req:2.9]") {
  const auto seed = std::random_device{}();
  INFO("seed " << seed);
  std::mt19937 random(seed);
  for (int round = 0; round < 100; ++round) {
    INFO("round " << round);
    const Machine machine = random_machine(random);
    REQUIRE(check(machine).ok());
    const std::string text = write_nccl_xml(machine);
    const auto read = read_nccl_xml(text);
    INFO(text);
    REQUIRE((read.ok() ? "ok" : read.error().to_string()) == "ok");
    REQUIRE(write_nccl_xml(*read) == text);
    REQUIRE(read->gpus.size() == machine.gpus.size());
    // NCCL's format cannot express inactive ports.
    REQUIRE(static_cast<std::ptrdiff_t>(read->nics.size()) ==
            std::count_if(machine.nics.begin(), machine.nics.end(),
                          [](const Nic& nic) { return nic.active; }));
    for (std::size_t i = 0; i < machine.gpus.size(); ++i) {
      REQUIRE(read->gpus[i].pci == machine.gpus[i].pci);
      REQUIRE(read->gpus[i].switch_links == machine.gpus[i].switch_links);
      REQUIRE(read->gpus[i].nvml_index == machine.gpus[i].nvml_index);
    }
    // The format has no host bridges, and one guid stands for a device and its card. Decisions that
    // do not depend on them stay the same.
    REQUIRE(reach_lists(*read) == reach_lists(machine));
    const auto before = all_paths(machine);
    const auto after = all_paths(*read);
    for (std::size_t from = 0; from < before.size(); ++from) {
      for (std::size_t to = 0; to < before.size(); ++to) {
        REQUIRE(after[from][to].kind == before[from][to].kind);
        REQUIRE(after[from][to].hops == before[from][to].hops);
      }
    }
  }
}

TEST_CASE("random machines: reach, NICs and paths depend neither on order nor on the rank",
          "[req:2.9]") {
  const auto seed = std::random_device{}();
  INFO("seed " << seed);
  std::mt19937 random(seed);
  for (int round = 0; round < 60; ++round) {
    INFO("round " << round);
    const Machine machine = random_machine(random);
    const std::string decided = decisions_text(machine);
    for (int rank = 0; rank < 4; ++rank) {
      // Each rank lists the machine in its own order; only rank 0 has CUDA's ordinals.
      Machine other = shuffled(machine, static_cast<unsigned>(random()));
      for (Gpu& gpu : other.gpus) gpu.ordinal = rank == 0 ? gpu.ordinal : -1;
      REQUIRE(decisions_text(canonical(other)) == decided);
    }
    // No GPU gets a NIC that is down. None gets a NIC that is farther than another that it could
    // have.
    const auto choices = choose_nics(machine);
    for (std::size_t i = 0; i < choices.size(); ++i) {
      const NicChoice& choice = choices[i];
      const bool any = std::any_of(machine.nics.begin(), machine.nics.end(),
                                   [](const Nic& nic) { return nic.active; });
      REQUIRE((choice.primary >= 0) == any);
      if (!any) continue;
      REQUIRE(machine.nics[static_cast<std::size_t>(choice.primary)].active);
      REQUIRE(choice.backup != choice.primary);
      for (const Nic& nic : machine.nics) {
        if (!could_have(machine.nics[static_cast<std::size_t>(choice.primary)], nic)) continue;
        REQUIRE(route_between(machine, place_of(machine.gpus[i]), place_of(nic)).distance >=
                choice.distance);
      }
    }
  }
}

}  // namespace oriel::topo
