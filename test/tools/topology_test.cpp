// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
// What oriel-topo shows of the composed machines, and of this one.
#include <cstdlib>
#include <fstream>

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "program.hpp"
#include "support/numa_system.hpp"
#include "topo/machines.hpp"
#include "topo/nccl_xml.hpp"
#include "topo/placement.hpp"
#include "topo/xml_reader.hpp"
#include "topology/summary.hpp"

using namespace oriel;
using namespace oriel::tools;
using Json = nlohmann::json;

namespace {

/// The cells of the line that begins with `name`.
std::vector<std::string> row_of(const std::string& table, const std::string& name) {
  std::istringstream lines(table);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream cells(line);
    std::vector<std::string> row;
    for (std::string cell; cells >> cell;) row.push_back(cell);
    if (!row.empty() && row[0] == name) return row;
  }
  return {};
}

using Row = std::vector<std::string>;

int count_of(const std::string& text, const std::string& words) {
  int count = 0;
  for (std::size_t at = text.find(words); at != std::string::npos; at = text.find(words, at + 1)) {
    ++count;
  }
  return count;
}

ProgramResult oriel_topo(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), ORIEL_TOPO_PATH);
  return run_program(std::move(arguments));
}

/// The processors below `limit` that this thread may use.
std::vector<int> first_of_this_thread(int limit) {
  std::vector<int> cpus = topo::cpus_of_this_thread().value_or(std::vector<int>());
  std::erase_if(cpus, [&](int cpu) { return cpu >= limit; });
  return cpus;
}

}  // namespace

TEST_CASE("2.8 the table has paths, distances, teams, rails, NICs and processors") {
  const std::string hgx = table_of(summarise(topo::hgx_8()));
  INFO(hgx);
  CHECK(row_of(hgx, "GPU0") == Row{"GPU0", "X",      "NV18",   "NV18", "NV18", "NV18",
                                   "NV18", "NV18",   "NV18",   "PIX",  "PIX",  "NODE",
                                   "NODE", "SYS",    "SYS",    "SYS",  "SYS",  "0",
                                   "0",    "mlx5_0", "mlx5_1", "0",    "0-55"});
  CHECK(row_of(hgx, "GPU7")[17] == "0");
  CHECK(row_of(hgx, "GPU7")[18] == "7");

  const std::string cliques = table_of(summarise(topo::two_cliques()));
  INFO(cliques);
  CHECK(row_of(cliques, "GPU5") == Row{"GPU5", "(SYS)", "(SYS)", "(SYS)", "(SYS)", "NV4", "X",
                                       "NV4", "NV4", "1", "1", "-", "-", "1", "16-31"});
  const std::string pcie = table_of(summarise(topo::workstation()));
  CHECK(row_of(pcie, "GPU0") == Row{"GPU0", "X", "PHB", "0", "0", "-", "-", "0", "0-31"});
  const std::string ring = table_of(summarise(topo::amd_partial_mesh()));
  CHECK(row_of(ring, "GPU0")[2] == "NV1");
  CHECK(row_of(ring, "GPU0")[3] == "2hop");
  CHECK(row_of(ring, "GPU0")[5] == "(NODE)");
  const std::string cpu = table_of(summarise(topo::cpu_only()));
  INFO(cpu);
  CHECK(cpu.find("There is no GPU.") != std::string::npos);
  CHECK(cpu.find("NUMA node 1  CPUs 4-7  NIC mlx5_1  backup mlx5_0") != std::string::npos);
}

TEST_CASE("2.8 the JSON holds the machine and what is decided about it") {
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
  topo::Machine odd = topo::workstation();
  odd.host = "\xff\xfe";  // no UTF-8
  CHECK_FALSE(Json::parse(json_of(summarise(odd)), nullptr, false).is_discarded());
}

TEST_CASE("2.8 the picture is well-formed and shows every device and choice") {
  const char* const keep = std::getenv("ORIEL_TEST_PICTURES");  // a folder, to look at them
  for (const auto& [name, machine] : topo::all_machines()) {
    INFO(name);
    const std::string picture = svg_of(summarise(machine));
    if (keep != nullptr) std::ofstream(std::string(keep) + "/" + name + ".svg") << picture;
    const auto parsed = topo::parse_xml(picture);
    REQUIRE((parsed.ok() ? "ok" : parsed.error().to_string()) == "ok");
    for (std::size_t i = 0; i < machine.gpus.size(); ++i) {
      CHECK(picture.find(">GPU" + std::to_string(i) + "<") != std::string::npos);
    }
    for (std::size_t i = 0; i < machine.nics.size(); ++i) {
      CHECK(picture.find(">NIC" + std::to_string(i) + "<") != std::string::npos);
    }
  }
  const std::string hgx = svg_of(summarise(topo::hgx_8()));
  CHECK(count_of(hgx, "PCIe switch ") == 4);
  CHECK(count_of(hgx, "NUMA node ") == 2);
  CHECK(count_of(hgx, "stroke=\"#d9480f\"") == 8 + 1);  // and the legend
  CHECK(hgx.find("NVLink through switches, 18 links a GPU") != std::string::npos);
  topo::Machine odd = topo::cpu_only();
  odd.host = "<&\">";
  CHECK(topo::parse_xml(svg_of(summarise(odd))).ok());
}

TEST_CASE("2.5 2.8 the processors shown are those that the library would take") {
  const topo::Machine hgx = topo::hgx_8();
  const Summary other = summarise(hgx);
  CHECK_FALSE(other.processors);
  CHECK(row_of(table_of(other), "GPU7").back() == "56-111");
  test::NumaSystem system;
  system.cpus = {3, 4, 60, 61};
  Settings settings;
  Summary own = summarise(hgx, &settings);
  CHECK(row_of(table_of(own), "GPU0").back() == "3-4");
  CHECK(row_of(table_of(own), "GPU7").back() == "60-61");
  CHECK(table_of(own).find("started like this: processors 3-4,60-61, host memory as it comes") !=
        std::string::npos);
  const Json document = Json::parse(json_of(own));
  CHECK(document["gpus"][7]["affinity"]["cpus"] == std::vector<int>{60, 61});
  CHECK(document["gpus"][7]["affinity"]["memory_node"] == 1);
  CHECK(document["cpu_rank"]["cpus"].size() == 4);
  CHECK(Json::parse(json_of(other))["cpu_rank"].is_null());

  system.cpus = {60};
  own = summarise(hgx, &settings);
  CHECK(row_of(table_of(own), "GPU0").back() == "-");
  CHECK(table_of(own).find("may use no processor near") != std::string::npos);
  CHECK(Json::parse(json_of(own))["gpus"][0]["affinity"]["kept_away"] == true);
  CHECK(Json::parse(json_of(own))["cpu_rank"]["memory_node"] == 1);
  settings.ignore_cpu_affinity = true;
  CHECK(row_of(table_of(summarise(hgx, &settings)), "GPU0").back() == "0-55");
  settings.cpu_affinity = false;
  CHECK(row_of(table_of(summarise(hgx, &settings)), "GPU7").back() == "-");
}

TEST_CASE("2.8 oriel-topo describes this machine, or that of a file") {
  const auto here = oriel_topo({});
  INFO(here.out << here.err);
  CHECK(here.status == 0);
  CHECK(here.out.find("hwloc") != std::string::npos);
  CHECK_FALSE(Json::parse(oriel_topo({"--json"}).out, nullptr, false).is_discarded());
  CHECK(topo::parse_xml(oriel_topo({"--svg"}).out).ok());

  const std::string path = "/tmp/oriel-topo-test-" + std::to_string(getpid()) + ".xml";
  std::ofstream(path) << topo::write_nccl_xml(topo::hgx_8());
  const auto file = oriel_topo({"--file", path});
  CHECK(file.status == 0);
  CHECK(row_of(file.out, "GPU3").size() == 23);
  CHECK(oriel_topo({"--file", path, "--nccl-xml"}).out == topo::write_nccl_xml(topo::hgx_8()));
  const auto why = oriel_topo({"--file", path, "--explain", "0", "1"});
  CHECK(why.status == 0);
  CHECK(why.out.find("GPU 0 (0000:12:00.0) reaches the memory of GPU 1") == 0);

  const auto by_setting = run_program({ORIEL_TOPO_PATH}, {{"NCCL_TOPO_FILE", path}});
  // The library's own threads keep to the processors that this process may use.
  Row own = row_of(by_setting.out, "GPU3");
  Row all = row_of(file.out, "GPU3");
  REQUIRE(own.size() == all.size());
  CHECK(own.back() == ranges_text(first_of_this_thread(56)));
  CHECK(all.back() == "0-55");
  own.pop_back();
  all.pop_back();
  CHECK(own == all);
  const std::string dump = path + ".dump";
  CHECK(run_program({ORIEL_TOPO_PATH}, {{"NCCL_TOPO_FILE", path}, {"NCCL_TOPO_DUMP_FILE", dump}})
            .status == 0);
  const auto dumped = topo::read_xml_file(dump);
  REQUIRE(dumped.ok());
  CHECK(*dumped == topo::write_nccl_xml(topo::hgx_8()));
  std::remove(dump.c_str());
  const auto nowhere = run_program(
      {ORIEL_TOPO_PATH},
      {{"ORIEL_TOPO_FILE", path}, {"ORIEL_TOPO_DUMP_FILE", "/nowhere/x"}, {"ORIEL_LOG", "warn"}});
  CHECK(nowhere.status == 0);
  CHECK(nowhere.err.find("writing /nowhere/x") != std::string::npos);

  const auto beyond = oriel_topo({"--file", path, "--explain", "0", "8"});
  CHECK(beyond.status == 1);
  CHECK(beyond.err.find("--explain 8: there are 8 GPUs") != std::string::npos);
  std::ofstream(path) << "<system>\n<cpu numaid=\"x\"/>\n</system>";
  const auto odd = oriel_topo({"--file", path});
  CHECK(odd.status == 1);
  CHECK(odd.err.find("line 2: <cpu> has numaid 'x'") != std::string::npos);
  std::remove(path.c_str());
  CHECK(oriel_topo({"--file", path}).status == 1);
  CHECK(oriel_topo({"--json", "--svg"}).status != 0);
}
