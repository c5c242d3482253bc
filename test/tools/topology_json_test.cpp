// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
// Tests the JSON output of oriel-topo.
#include <string>

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "topo/machine/machines.hpp"
#include "topology/summary.hpp"

using namespace oriel;
using namespace oriel::tools;
using Json = nlohmann::json;

TEST_CASE("the JSON holds the machine and what is decided about it", "[req:2.8]") {
  for (const auto& [name, machine] : topo::all_machines()) {
    INFO(name);
    const std::string text = json_of(summarise(machine));
    const Json document = Json::parse(text, nullptr, false);
    REQUIRE_FALSE(document.is_discarded());
    CHECK(nlohmann::ordered_json::parse(text).dump(2) + "\n" == text);  // indented for readability
    CHECK(document["gpus"].size() == machine.gpus.size());
    CHECK(document["nics"].size() == machine.nics.size());
    CHECK(document["pci_nodes"].size() == machine.pci.size());
    CHECK(document["paths"].size() ==
          machine.gpus.size() * (machine.gpus.size() - 1) * (machine.gpus.empty() ? 0 : 1));
  }
  const Json hgx = Json::parse(json_of(summarise(topo::hgx_8())));
  CHECK(hgx["gpus"][5]["choice"]["nic"] == 5);
  CHECK(hgx["gpus"][5]["mapped_by"].size() == 8);
  CHECK(hgx["paths"][0]["kind"] == "NVLink");
  const Json amd = Json::parse(json_of(summarise(topo::amd_full_mesh())));
  CHECK(amd["paths"][0]["kind"] == "xGMI");
  CHECK(amd["paths"][0]["links"] == 1);
  topo::Machine full = topo::hgx_8();
  full.gpus[1].fabric = topo::FabricClique{{std::byte{0xab}}, 7};
  full.nics[1].guid = 0x1f;
  full.nics[1].card = 0;
  const Json facts = Json::parse(json_of(summarise(full)));
  CHECK(facts["gpus"][0]["compute_capability"] == "9.0");
  CHECK(facts["gpus"][0]["fabric_clique"].is_null());
  CHECK(facts["gpus"][1]["fabric_clique"]["cluster"] == "ab" + std::string(30, '0'));
  CHECK(facts["gpus"][1]["fabric_clique"]["clique"] == 7);
  CHECK(facts["nics"][1]["guid"] == "0x1f");
  CHECK(facts["nics"][1]["card"].is_null());
  topo::Machine odd = topo::workstation();
  odd.host = "\xff\xfe";  // invalid UTF-8
  CHECK_FALSE(Json::parse(json_of(summarise(odd)), nullptr, false).is_discarded());
}
