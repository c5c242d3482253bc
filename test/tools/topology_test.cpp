// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
// Tests the output of oriel-topo for the composed machines and for this one.
#include <algorithm>
#include <cstdlib>
#include <fstream>

#include <catch2/catch.hpp>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "program.hpp"
#include "support/numa_system.hpp"
#include "support/words.hpp"
#include "topo/choice/placement.hpp"
#include "topo/machine/fixture.hpp"
#include "topo/machine/machines.hpp"
#include "topo/xml/nccl_xml.hpp"
#include "topo/xml/xml_reader.hpp"
#include "topology/summary.hpp"
#include "topology/svg_layout.hpp"

using namespace oriel;
using namespace oriel::tools;
using Json = nlohmann::json;

namespace {

using test::has;

/// Returns the cells of the line that begins with `name`.
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

/// Returns the processors below `limit` that this thread may use.
std::vector<int> first_of_this_thread(int limit) {
  std::vector<int> cpus = topo::cpus_of_this_thread().value_or(std::vector<int>());
  std::erase_if(cpus, [&](int cpu) { return cpu >= limit; });
  return cpus;
}

}  // namespace

TEST_CASE("the table has paths, distances, teams, rails, NICs and processors", "[req:2.8]") {
  const auto row = [](const topo::Machine& machine, const char* name) {
    return row_of(table_of(summarise(machine)), name);
  };
  CHECK(row(topo::hgx_8(), "GPU0") == Row{"GPU0", "X",      "NV18",   "NV18", "NV18", "NV18",
                                          "NV18", "NV18",   "NV18",   "PIX",  "PIX",  "NODE",
                                          "NODE", "SYS",    "SYS",    "SYS",  "SYS",  "0",
                                          "0",    "mlx5_0", "mlx5_1", "0",    "0-55"});
  CHECK(row(topo::two_cliques(), "GPU5") == Row{"GPU5", "(SYS)", "(SYS)", "(SYS)", "(SYS)", "NV4",
                                                "X", "NV4", "NV4", "1", "1", "-", "-", "1",
                                                "16-31"});
  CHECK(row(topo::amd_partial_mesh(), "GPU0")[3] == "2hop");
  const std::string cpu = table_of(summarise(topo::cpu_only()));
  CHECK(has(cpu, "There is no GPU."));
  CHECK(has(cpu, "NUMA node 1  CPUs 4-7  NIC mlx5_1  backup mlx5_0"));
}

namespace {

std::size_t widest_line(const std::string& text) {
  std::istringstream lines(text);
  std::size_t most = 0;
  for (std::string line; std::getline(lines, line);) most = std::max(most, line.size());
  return most;
}

/// Returns the table's part before the list of devices.
std::string matrix_of(const std::string& table) {
  return table.substr(0, table.find("\nGPU0  0000:"));
}

topo::Machine large_machine(int gpus, int nics) {
  topo::MachineBuilder build;
  for (int numa : {0, 3}) build.numa(numa, {numa * 2, numa * 2 + 1});
  for (int i = 0; i < gpus; ++i) {
    const int root = build.host_bridge(i % 2);
    build.gpu(root, fmt::format("{:04x}:01:00.0", i).c_str());
  }
  for (int i = 0; i < nics; ++i) {
    const int root = build.host_bridge(i % 2);
    build.nic(root, fmt::format("{:04x}:02:00.0", i).c_str(), fmt::format("mlx5_{}", i).c_str());
  }
  return topo::canonical(std::move(build.machine));
}

}  // namespace

TEST_CASE("a table that is wider than the terminal is broken into blocks of columns", "[req:2.8]") {
  for (const auto& [name, machine] : topo::all_machines()) {
    INFO(name);
    const std::string free = table_of(summarise(machine));
    for (const std::size_t width : {std::size_t{80}, std::size_t{200}}) {
      const std::string table = table_of(summarise(machine), width);
      INFO(table);
      if (!machine.gpus.empty()) CHECK(widest_line(matrix_of(table)) <= width);
    }
    CHECK(table_of(summarise(machine), 100'000) == free);
  }
  const std::string hgx = table_of(summarise(topo::hgx_8()), 80);
  INFO(hgx);
  CHECK(count_of(hgx, "from ") == 3);  // GPUs, NICs, decisions
  CHECK(count_of(hgx, "\nGPU7  ") == 4);
  // A column wider than the terminal gets a block of its own.
  CHECK(widest_line(matrix_of(table_of(summarise(topo::hgx_8()), 5))) < 20);
}

TEST_CASE("64 GPUs, 100 NICs, none of either, and NUMA nodes with gaps", "[req:2.8]") {
  const Summary many = summarise(large_machine(64, 100));
  const std::string table = table_of(many, 200);
  CHECK(widest_line(matrix_of(table)) <= 200);
  CHECK(has(table, "NUMA node 3"));
  CHECK(row_of(table_of(many), "GPU63").size() == 1 + 64 + 100 + 6);
  CHECK(topo::parse_xml(svg_of(many)).ok());
  CHECK(Json::parse(json_of(many))["paths"].size() == 64 * 63);
  for (const auto& [gpus, nics] : {std::pair{0, 0}, {0, 3}, {1, 0}}) {
    const Summary few = summarise(large_machine(gpus, nics));
    CHECK(has(table_of(few, 80), gpus == 0 ? "There is no GPU." : "GPU0"));
    CHECK(topo::parse_xml(svg_of(few)).ok());
  }
  topo::Machine nothing;
  CHECK(table_of(summarise(nothing)) == "There is no GPU.\n\n");
  CHECK(topo::parse_xml(svg_of(summarise(nothing))).ok());
}

TEST_CASE("names with control characters, foreign letters or no end are shown and do no harm",
          "[req:2.8]") {
  topo::Machine odd = topo::uneven();
  odd.host = "\x1b[2J<host>&\"\r\n";
  odd.gpus[0].name = std::string(5000, 'x');
  odd.gpus[1].name = "\xc2\x9b\x33\x31m\xff\xfe";
  odd.gpus[3].name = "GPU f\xc3\xbcr \xe4\xb8\xad\xe6\x96\x87";
  odd.nics[0].name = "mlx<5>&\"\x07";
  odd.nics[4].name = std::string(300, 'n');
  odd.sources.push_back({"\x1b", topo::SourceReport::Outcome::used, "\n\n"});
  const Summary summary = summarise(odd);
  const std::string table = table_of(summary, 200);
  INFO(table);
  CHECK(std::none_of(table.begin(), table.end(), [](char letter) {
    return static_cast<unsigned char>(letter) < 0x20 && letter != '\n';
  }));
  CHECK(has(table, "?31m??"));
  CHECK(has(table, "GPU f\xc3\xbcr \xe4\xb8\xad\xe6\x96\x87"));
  CHECK(widest_line(table) < 300);
  const std::string picture = svg_of(summary);
  CHECK(topo::parse_xml(picture).ok());
  CHECK(picture.find("mlx&lt;5&gt;&amp;&quot;?") != std::string::npos);
  CHECK_FALSE(has(picture, std::string(30, 'n')));  // a long name would not fit its box
  CHECK_FALSE(Json::parse(json_of(summary), nullptr, false).is_discarded());
  CHECK(topo::read_nccl_xml(topo::write_nccl_xml(odd)).ok());
}

TEST_CASE("the picture is well-formed and shows every device and choice", "[req:2.8]") {
  const char* const keep = std::getenv("ORIEL_TEST_PICTURES");  // a folder to keep the pictures in
  for (const auto& [name, machine] : topo::all_machines()) {
    INFO(name);
    const std::string picture = svg_of(summarise(machine));
    if (keep != nullptr) std::ofstream(std::string(keep) + "/" + name + ".svg") << picture;
    const auto parsed = topo::parse_xml(picture);
    REQUIRE((parsed.ok() ? "ok" : parsed.error().to_string()) == "ok");
    for (std::size_t i = 0; i < machine.gpus.size(); ++i) {
      CHECK(has(picture, ">GPU" + std::to_string(i) + "<"));
    }
    for (std::size_t i = 0; i < machine.nics.size(); ++i) {
      CHECK(has(picture, ">NIC" + std::to_string(i) + "<"));
    }
  }
  const std::string hgx = svg_of(summarise(topo::hgx_8()));
  CHECK(count_of(hgx, "PCIe switch ") == 4);
  CHECK(count_of(hgx, "NUMA node ") == 2);
  CHECK(count_of(hgx, "height=\"17\"") == 4 + 2 + 4);   // no line crosses a label
  CHECK(count_of(hgx, "stroke=\"#d9480f\"") == 8 + 1);  // one in the legend
  CHECK(has(hgx, "NVLink through switches, 18 links a GPU"));
  CHECK_FALSE(has(hgx, "over PCIe"));  // no legend for absent kinds
  // GPUs that CUDA does not support are not called invisible, and are drawn with their names.
  const std::string amd = svg_of(summarise(topo::amd_full_mesh()));
  CHECK_FALSE(has(amd, "not visible"));
  CHECK(count_of(amd, ">AMD gfx942<") == 8);
  const std::string cpus = svg_of(summarise(topo::cpu_only()));
  CHECK(has(cpus, "CPUs 4-7, NIC1, backup NIC0<"));
  CHECK_FALSE(has(cpus, "How to read this"));
  // A team is drawn as linked only if all of its pairs are linked.
  topo::Machine mixed = topo::two_cliques();
  for (topo::GpuPair& pair : mixed.pairs) {
    if (pair.from + pair.to == 5) pair.links = 0;  // 2 and 3 map each other over PCIe
  }
  CHECK(has(svg_of(summarise(mixed)), "some pairs linked, others over PCIe"));
}

TEST_CASE("switches in a row are boxes in boxes, a card with two functions is none", "[req:2.8]") {
  topo::MachineBuilder build;
  build.numa(0, {0, 1});
  const int root = build.host_bridge(0);
  const int port = build.bridge(root, "0000:10:00.0");  // leads only to the first switch
  const int first = build.bridge(port, "0000:11:00.0");
  build.gpu(build.bridge(first, "0000:12:00.0"), "0000:13:00.0");
  build.nic(build.bridge(first, "0000:12:01.0"), "0000:14:00.0", "mlx5_0");
  const int second = build.bridge(first, "0000:12:02.0");
  build.gpu(build.bridge(second, "0000:20:00.0"), "0000:21:00.0");
  build.nic(build.bridge(second, "0000:20:01.0"), "0000:22:00.0", "mlx5_1");
  const int card = build.bridge(root, "0000:30:00.0");
  build.nic(card, "0000:31:00.0", "mlx5_2");
  build.nic(card, "0000:31:00.1", "mlx5_3");
  const Summary summary = summarise(topo::canonical(std::move(build.machine)));
  const Layout layout = lay_out(summary, 50);
  const auto holds = [](const Box& outer, const Box& inner) {
    return outer.x < inner.x && outer.right() > inner.right() && outer.y < inner.y &&
           outer.bottom() > inner.bottom();
  };
  REQUIRE(layout.switches.size() == 2);
  CHECK(layout.switches[0].label == "PCIe switch 0000:11:00.0");
  CHECK(layout.switches[1].label == "PCIe switch 0000:12:02.0");
  CHECK(holds(layout.switches[0], layout.switches[1]));
  CHECK(holds(layout.switches[0], layout.gpus[0]));
  CHECK_FALSE(holds(layout.switches[1], layout.gpus[0]));
  CHECK(holds(layout.switches[1], layout.gpus[1]));
  CHECK(holds(layout.switches[1], layout.nics[1]));
  CHECK(layout.gpus[0].y == layout.gpus[1].y);
  CHECK(layout.gpus[0].right() < layout.gpus[1].x);
  for (const std::size_t nic : {2U, 3U}) {
    CHECK_FALSE(holds(layout.switches[0], layout.nics[nic]));
    CHECK(holds(layout.host_bridges[0], layout.nics[nic]));
  }
  CHECK(topo::parse_xml(svg_of(summary)).ok());
}

TEST_CASE("pairs of unknown reach are marked and counted, and their assumed path is shown",
          "[req:2.3]") {
  topo::Machine machine = topo::workstation();
  CHECK_FALSE(has(table_of(summarise(machine)), "no source says"));
  machine.pairs.clear();
  const Summary summary = summarise(machine);
  CHECK(summary.unknown_pairs == 1);
  const std::string table = table_of(summary);
  CHECK(row_of(table, "GPU0")[2] == "(PHB)?");
  CHECK(has(table, "Of 1 pair of GPUs no source says"));
  CHECK(has(table, "\n?     not known"));
  const Json json = Json::parse(json_of(summary));
  CHECK(json["pairs_of_unknown_reach"] == 1);
  CHECK(json["paths"][0]["maps"].is_null());
  for (const bool maps : {false, true}) {  // a refused pair's paths look like the unknown one's
    topo::MachineBuilder build{machine};
    build.pair(0, 1, maps);
    CHECK(Json::parse(json_of(summarise(build.machine)))["paths"][0]["maps"] == maps);
  }
}

TEST_CASE("the network interfaces of ranks are shown, of this machine alone", "[req:2.5]") {
  Summary summary = summarise(topo::workstation());
  CHECK(summary.interfaces.empty());
  CHECK_FALSE(has(table_of(summary), "Network interface"));
  summary.interfaces = {{"ens1", "ens2", {"ens1", "ens2"}, "ens1 on 0000:03:00.0 (PIX)"}, {}};
  summary.cpu_interfaces = topo::InterfaceChoice{"veth\x1b", "", {"veth\x1b"}, "veth\x1b"};
  const std::string table = table_of(summary);
  CHECK(has(table, "Network interface of GPU0: ens1 on 0000:03:00.0 (PIX)\n"));
  CHECK_FALSE(has(table, "Network interface of GPU1"));
  CHECK(has(table, "Network interface of a rank on the CPU: veth?\n"));
  const Json json = Json::parse(json_of(summary));
  CHECK(json["gpus"][0]["interfaces"]["backup"] == "ens2");
  CHECK(json["cpu_rank_interfaces"]["primary"] == "veth\x1b");
  const Json here = Json::parse(oriel_topo({"--json"}).out);
  CHECK(here["cpu_rank_interfaces"].is_object());
}

TEST_CASE("parts of a GPU and virtual functions of a card are shown as such", "[req:2.1]") {
  const Summary summary = summarise(topo::load_fixture("amd-partitions"));
  const std::string table = table_of(summary);
  CHECK(count_of(table, ", partition 0") == 2);
  CHECK(count_of(table, ", partition 1") == 2);
  CHECK(count_of(table, "200 Gbit/s, a virtual function of 0000:09:00.0") == 1);
  CHECK(count_of(svg_of(summary), "of 0000:09:00.0<") == 1);
  const Json json = Json::parse(json_of(summary));
  CHECK(json["gpus"][1]["partition"] == 1);
  CHECK(json["nics"][2]["physical_function"] == "0000:09:00.0");
}

TEST_CASE("both speeds of a PCIe link are shown: the most, by which is decided, and now",
          "[req:2.1]") {
  topo::Machine machine = topo::workstation();
  machine.gpus[0].pcie_gbps = 504.128;
  machine.gpus[0].pcie_now_gbps = 32;
  machine.gpus[1].pcie_gbps = machine.gpus[1].pcie_now_gbps = 504.128;
  const Summary summary = summarise(machine);
  const std::string table = table_of(summary);
  CHECK(count_of(table, "PCIe 504 Gbit/s, now 32") == 1);
  CHECK(count_of(table, "PCIe 504 Gbit/s") == 2);
  const Json json = Json::parse(json_of(summary));
  CHECK(json["gpus"][0]["pcie_gbps"] == 504.128);
  CHECK(json["gpus"][0]["pcie_now_gbps"] == 32.0);
  topo::PciNode& node = machine.pci[static_cast<std::size_t>(machine.gpus[1].node)];
  node.lanes = 16;
  CHECK_FALSE(has(table_of(summarise(machine)), "lanes"));
  node.lanes_now = 8;
  CHECK(count_of(table_of(summarise(machine)), "PCIe 504 Gbit/s, 8 of 16 lanes") == 1);
}

TEST_CASE("the processors shown are those that the library would take", "[req:2.5][req:2.8]") {
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
  CHECK(has(table_of(own), "started like this: processors 3-4,60-61, host memory as it comes"));
  const Json document = Json::parse(json_of(own));
  CHECK(document["gpus"][7]["affinity"]["cpus"] == std::vector<int>{60, 61});
  CHECK(document["gpus"][7]["affinity"]["memory_node"] == 1);
  CHECK(document["cpu_rank"]["cpus"].size() == 4);
  CHECK(Json::parse(json_of(other))["cpu_rank"].is_null());

  system.cpus = {60};
  own = summarise(hgx, &settings);
  CHECK(row_of(table_of(own), "GPU0").back() == "-");
  CHECK(has(table_of(own), "may use no processor near"));
  CHECK(Json::parse(json_of(own))["gpus"][0]["affinity"]["kept_away"] == true);
  CHECK(Json::parse(json_of(own))["cpu_rank"]["memory_node"] == 1);
  settings.ignore_cpu_affinity = true;
  CHECK(row_of(table_of(summarise(hgx, &settings)), "GPU0").back() == "0-55");
  settings.cpu_affinity = false;
  CHECK(row_of(table_of(summarise(hgx, &settings)), "GPU7").back() == "-");
}

namespace {

/// Checks the files that the library reads and writes. `all` is GPU 3's row without a CPU binding.
void check_files_of_settings(const std::string& path, Row all) {
  const auto by_setting = run_program({ORIEL_TOPO_PATH}, {{"NCCL_TOPO_FILE", path}});
  // The library's own threads use only processors that this process may use.
  Row own = row_of(by_setting.out, "GPU3");
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
      {ORIEL_TOPO_PATH}, {{"ORIEL_TOPO_FILE", path}, {"ORIEL_TOPO_DUMP_FILE", "/nowhere/x"}});
  CHECK(nowhere.status == 1);
  CHECK(nowhere.err.find("oriel-topo: writing /nowhere/x failed (ENOENT") == 0);
  CHECK(row_of(nowhere.out, "GPU3").size() == own.size() + 1);
}

}  // namespace

TEST_CASE("oriel-topo describes this machine, or that of a file", "[req:2.8]") {
  const auto here = oriel_topo({});
  INFO(here.out << here.err);
  CHECK(here.status == 0);
  CHECK(has(here.out, "hwloc"));
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

  // GPUs of this machine would be listed beside those of the file.
  if (here.out.find("CUDA device") == std::string::npos) {
    check_files_of_settings(path, row_of(file.out, "GPU3"));
  } else {
    WARN("skipped: the settings' files were not read, for this machine has GPUs of its own");
  }

  const auto beyond = oriel_topo({"--file", path, "--explain", "0", "8"});
  CHECK(beyond.status == 1);
  CHECK(has(beyond.err, "--explain 8: there are 8 GPUs"));
  for (const auto& [from, to] : {std::pair("", "0"), {"0", ""}}) {
    const auto nameless = oriel_topo({"--file", path, "--explain", from, to});
    CHECK(nameless.status != 0);
    CHECK(has(nameless.err, "it names no GPU"));
  }
  std::remove(path.c_str());
  CHECK(oriel_topo({"--file", path}).status == 1);
  for (const char* width : {"-1", "wide"}) CHECK(oriel_topo({"--width", width}).status != 0);
  CHECK(has(oriel_topo({"--file", ""}).err, "it names no file"));
  CHECK(has(oriel_topo({"--file", "/dev/zero"}).err, "more than 16777216 bytes"));
}

TEST_CASE("oriel-topo says why its output cannot be written", "[req:2.8]") {
  const std::string program = ORIEL_TOPO_PATH;
  for (const char* where :
       {" >/dev/full", " >&-", " --json >/dev/full", " --help >/dev/full", " --help >&-"}) {
    const auto lost = run_program({"/bin/sh", "-c", program + where});
    INFO(where << ": " << lost.err);
    CHECK(lost.status == 1);
    CHECK(lost.err.find("oriel-topo: writing standard output failed (E") == 0);
  }
}

namespace {

const std::string kRoot = ORIEL_TEST_SOURCE_DIR;

}  // namespace

TEST_CASE("oriel-topo refuses what is no description, at once, and exits with 1", "[req:2.7]") {
  const std::string path = "/tmp/oriel-topo-odd-" + std::to_string(getpid());
  const std::string hwloc = test::text_of_file(kRoot + "/test/topo/fixtures/uneven/hwloc.xml");
  for (const auto& [text, words] :
       {std::pair<std::string, const char*>("", "line 1: no element found"),
        {hwloc.substr(0, hwloc.size() / 2), "line "},
        {"<html/>", "line 1: <html> is not NCCL's <system>"},
        {"<system>\n<cpu numaid=\"\xc2\x9b\x32J\"/></system>", "line 2: <cpu> has numaid '?2J'"}}) {
    std::ofstream(path) << text;
    const auto result = oriel_topo({"--file", path});
    INFO(result.err);
    CHECK(result.status == 1);
    CHECK(result.out.empty());
    CHECK(has(result.err, words));
  }
  std::remove(path.c_str());
  CHECK(oriel_topo({"--file", "/"}).status == 1);
}

TEST_CASE("a container without /sys is described, and nothing is said on standard error",
          "[req:2.2]") {
  const auto hidden =
      run_program({"/bin/sh", "-c",
                   "exec unshare -m sh -c 'mount -t tmpfs none /sys && exec " ORIEL_TOPO_PATH "'"});
  if (hidden.out.empty()) {
    WARN("skipped: /sys cannot be hidden here (" << hidden.err << ")");
    return;
  }
  CHECK(hidden.status == 0);
  CHECK(hidden.err.empty());
  CHECK(has(hidden.out, "hwloc: absent, there is no /sys/devices/system/cpu"));
}

TEST_CASE("the file that HWLOC_XMLFILE names is validated like any other description",
          "[req:2.7]") {
  const std::string odd = kRoot + "/test/fuzz/corpus/hwloc_xml/null-pointer-in-hwloc-2.9.xml";
  const auto table_with = [](const std::string& path) {
    const auto result = run_program({ORIEL_TOPO_PATH}, {{"HWLOC_XMLFILE", path}});
    CHECK(result.status == 0);
    return result.out;
  };
  CHECK(has(table_with(odd), "HWLOC_XMLFILE=" + odd + ": used, 1 NUMA node"));
  CHECK(has(table_with("/nowhere"), "HWLOC_XMLFILE=/nowhere: failed, opening /nowhere"));
}
