// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
// What oriel-topo shows as JSON.
#include <cstdio>
#include <fstream>
#include <string>

#include <catch2/catch.hpp>
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include "program.hpp"
#include "support/sanitized.hpp"
#include "topo/machine/machines.hpp"
#include "topo/xml/nccl_xml.hpp"
#include "topology/summary.hpp"

using namespace oriel;
using namespace oriel::tools;
using Json = nlohmann::json;

namespace {

/// As many GPUs as there may be, which makes for 65,280 paths.
topo::Machine many_gpus() {
  topo::MachineBuilder build;
  build.numa(0, {0, 1});
  for (int i = 0; i < 256; ++i) {
    build.gpu(build.host_bridge(0), fmt::format("{:04x}:01:00.0", i).c_str());
  }
  return topo::canonical(std::move(build.machine));
}

}  // namespace

TEST_CASE("the JSON holds the machine and what is decided about it", "[req:2.8]") {
  for (const auto& [name, machine] : topo::all_machines()) {
    INFO(name);
    const Json document = Json::parse(json_of(summarise(machine)), nullptr, false);
    REQUIRE_FALSE(document.is_discarded());
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
  odd.host = "\xff\xfe";  // no UTF-8
  CHECK_FALSE(Json::parse(json_of(summarise(odd)), nullptr, false).is_discarded());
}

TEST_CASE("the JSON is laid out for people, and ends without memory in words", "[req:2.8]") {
  for (const auto& [name, machine] : topo::all_machines()) {
    INFO(name);
    const std::string text = json_of(summarise(machine));
    CHECK(nlohmann::ordered_json::parse(text).dump(2) + "\n" == text);
  }
  if (test::kSanitized) return;  // a sanitizer takes more addresses than any limit leaves
  const std::string path = "/tmp/oriel-topo-many-" + std::to_string(getpid()) + ".xml";
  std::ofstream(path) << topo::write_nccl_xml(many_gpus());
  const std::string program = "exec " ORIEL_TOPO_PATH " --json --file " + path + " >/dev/null";
  int refused = 0;
  bool enough = false;
  for (int kilobytes = 16'000; kilobytes < 1'000'000 && !enough; kilobytes += kilobytes / 3) {
    const auto result =
        run_program({"/bin/sh", "-c", "ulimit -v " + std::to_string(kilobytes) + " && " + program});
    enough = result.status == 0;
    // Before it begins, the loader itself has words for it.
    if (enough || result.status == 127) continue;
    INFO(kilobytes << ": " << result.err);
    CHECK(result.status == 1);
    CHECK(result.err.find("out of memory") != std::string::npos);
    ++refused;
  }
  CHECK(enough);
  CHECK(refused > 0);
  std::remove(path.c_str());
}
