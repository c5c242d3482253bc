// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
// Compares docs/topology.md with the output of oriel-topo.
#include <algorithm>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <catch2/catch.hpp>
#include <fmt/format.h>

#include "program.hpp"
#include "support/words.hpp"
#include "topo/choice/paths.hpp"
#include "topo/machine/machines.hpp"
#include "topology/summary.hpp"

using namespace oriel;

namespace {

const std::string kRoot = ORIEL_TEST_SOURCE_DIR;

using test::text_of_file;

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

/// Runs oriel-topo in the source tree and returns its output.
std::string run_in_tree(const std::string& arguments) {
  const std::string line = "cd '" + kRoot + "' && '" ORIEL_TOPO_PATH "' " + arguments;
  const auto result = run_program({"/bin/sh", "-c", line});
  CHECK(result.status == 0);
  return result.out;
}

/// An example of the page: the arguments and the shown output, without the indentation.
struct Example {
  std::string arguments;
  std::string shown;
};

/// Returns the examples behind this prompt, in their order.
std::vector<Example> examples_of_page(const std::string& prompt) {
  const std::string command = "    " + prompt + " oriel-topo";
  std::vector<Example> examples;
  bool inside = false;
  for (const std::string& line : lines_of(test::text_of_file(kRoot + "/docs/topology.md"))) {
    const bool is_text = !line.empty() && !line.starts_with("    ");
    if (line.starts_with(command)) {
      examples.push_back({line.substr(command.size()), ""});
      inside = true;
    } else if (is_text || test::has(line, "$ ")) {
      inside = false;
    } else if (inside) {
      examples.back().shown += (line.empty() ? line : line.substr(4)) + "\n";
    }
  }
  for (Example& example : examples) {  // removes blank lines before the following text
    while (example.shown.ends_with("\n\n")) example.shown.pop_back();
  }
  return examples;
}

/// Returns a virtual machine with this many H200, as its sources described it.
tools::Summary virtual_machine(int gpus, int cpus) {
  topo::MachineBuilder build;
  std::vector<int> all;
  for (int cpu = 0; cpu < cpus; ++cpu) all.push_back(cpu);
  const int root = build.host_bridge(build.numa(0, all));
  for (int i = 0; i < gpus; ++i) {
    build.gpu(root, fmt::format("0000:00:{:02x}.0", i + 6).c_str(), "NVIDIA H200", 504.128);
    build.machine.gpus.back().uuid = "";
    build.machine.gpus.back().architecture = 90;
    build.machine.gpus.back().switch_links = 18;
    build.machine.gpus.back().link_gbps = 200;
    for (int other = 0; other < i; ++other) build.pair(other, i, true, 0, true);
  }
  using Outcome = topo::SourceReport::Outcome;
  build.machine.host = "vm";
  const std::string these = fmt::format("{} GPU{}", gpus, gpus == 1 ? "" : "s");
  build.machine.sources = {
      {"hwloc 2.8.0", Outcome::used,
       fmt::format("1 NUMA node, {} PCI devices and bridges", gpus + 4)},
      {"NVML, driver 580.159.04", Outcome::used, these},
      {"/sys/class/kfd/kfd/topology/nodes", Outcome::absent,
       "there is no such folder: AMD's compute driver is not loaded, or hidden"},
      {"CUDA driver 13.0", Outcome::used,
       fmt::format("{} visible device{}", gpus, gpus == 1 ? "" : "s")},
      {"/sys/class/infiniband", Outcome::used, "it lists no port"}};
  tools::Summary summary = tools::summarise(topo::canonical(std::move(build.machine)));
  summary.processors = topo::Affinity{all, -1, false};
  const std::string rest = "; no backup on other hardware";
  for (int i = 0; i < gpus; ++i) {
    summary.interfaces.push_back({"eth0", "", {"eth0"}, "eth0 on virtio2 (PHB)" + rest});
  }
  summary.cpu_interfaces =
      topo::InterfaceChoice{"eth0", "", {"eth0"}, "eth0 on virtio2 (NODE)" + rest};
  return summary;
}

/// Returns true if every shown line is printed, in this order; the page may omit lines.
bool is_part_of(const std::string& shown, const std::string& printed) {
  const std::vector<std::string> all = lines_of(printed);
  auto at = all.begin();
  for (const std::string& line : lines_of(shown)) {
    at = std::find(at, all.end(), line);
    if (at == all.end()) {
      WARN("not printed: " << line);
      return false;
    }
    ++at;
  }
  return true;
}

}  // namespace

TEST_CASE("the examples of docs/topology.md are what oriel-topo prints", "[req:2.8]") {
  const auto examples = examples_of_page("$");
  int compared = 0;
  for (const Example& example : examples) {
    INFO("oriel-topo" << example.arguments);
    CHECK(example.shown == run_in_tree(example.arguments));
    ++compared;
  }
  CHECK(compared > 0);
  // After a change run: oriel-topo --file test/topo/fixtures/hgx-8/nccl.xml --svg >
  // docs/topology-hgx.svg
  CHECK(text_of_file(kRoot + "/docs/topology-hgx.svg") ==
        run_in_tree("--file test/topo/fixtures/hgx-8/nccl.xml --svg"));
}

TEST_CASE("the examples of real machines in docs/topology.md match the present output",
          "[req:2.10]") {
  const auto examples = examples_of_page("h200$");
  REQUIRE(examples.size() == 4);  // 2 GPUs, the same in words, 1 and 4 GPUs in part
  const tools::Summary two = virtual_machine(2, 32);
  CHECK(examples[0].shown == tools::table_of(two));
  CHECK(examples[1].arguments == " --explain 0 1");
  std::string words;
  for (const std::string& line : lines_of(examples[1].shown)) {
    words += (words.empty() ? "" : " ") + line;
  }
  CHECK(words == topo::explain_path(two.machine, 0, 1));
  CHECK(is_part_of(examples[2].shown, tools::table_of(virtual_machine(1, 16))));
  CHECK(is_part_of(examples[3].shown, tools::table_of(virtual_machine(4, 64))));
}
