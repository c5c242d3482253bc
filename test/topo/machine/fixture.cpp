// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "topo/machine/fixture.hpp"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <map>
#include <set>
#include <sstream>
#include <stdexcept>

#include <fmt/format.h>

#include "support/words.hpp"
#include "topo/choice/affinity.hpp"
#include "topo/choice/nic_choice.hpp"
#include "topo/choice/paths.hpp"
#include "topo/choice/reach.hpp"
#include "topo/machine/discover.hpp"
#include "topo/model/nvlink_generation.hpp"
#include "topo/sources/fake_nvml.hpp"
#include "topo/sources/numa_sysfs.hpp"
#include "topo/sources/temporary_tree.hpp"

namespace oriel::topo {
namespace {

const std::string kFolder = std::string(ORIEL_TEST_SOURCE_DIR) + "/test/topo/fixtures/";
constexpr const char* kDescription = "hwloc.xml";

[[noreturn]] void refuse(const std::string& line) {
  throw std::runtime_error("a fixture has the line '" + line + "'");
}

/// Unpacks "/a = text", "/a -> target", or "/a:" with indented lines below; # starts a comment.
void unpack(const std::string& text, const TemporaryTree& tree) {
  std::istringstream lines(text);
  std::map<std::string, std::string> long_files;
  std::string* open = nullptr;
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("  ") && open != nullptr) {
      *open += line.substr(2) + "\n";
      continue;
    }
    open = nullptr;
    if (line.empty() || line[0] == '#') continue;
    const std::size_t is = line.find(" = ");
    const std::size_t leads = line.find(" -> ");
    if (is != std::string::npos) {
      tree.file(line.substr(0, is), line.substr(is + 3) + "\n");
    } else if (leads != std::string::npos) {
      tree.link(line.substr(0, leads), line.substr(leads + 4));
    } else if (line.back() == ':') {
      open = &long_files[line.substr(0, line.size() - 1)];
    } else {
      refuse(line);
    }
  }
  for (const auto& [path, content] : long_files) tree.file(path, content);
}

/// Parses a gpus file: fills a model of NVML, and keeps the facts that CUDA adds.
class GpuFacts {
 public:
  GpuFacts(const std::string& text, FakeNvml& nvml) : nvml_(nvml) {
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) {
      if (line.empty() || line[0] == '#') continue;
      std::istringstream words(line);
      std::string kind;
      words >> kind;
      if (kind == "gpu" || kind == "mig") {
        read_device(kind == "mig", words, line);
      } else {
        read_pairs(kind, words, line);
      }
    }
    const auto count = static_cast<int>(nvml_.devices.size());
    for (int from = 0; from < count; ++from) {
      for (int to = 0; to < count; ++to) {
        if (from == to || atomics_.contains({from, to})) continue;
        nvml_.refused.push_back({from, to, NvmlConstants::atomics});
      }
    }
  }

  /// Adds CUDA's facts to the devices that are visible to CUDA.
  void add_to(Machine& machine) const {
    for (Gpu& gpu : machine.gpus) {
      const auto known = cuda_.find(gpu.uuid);
      if (known == cuda_.end() || known->second.ordinal < 0) continue;
      gpu.ordinal = known->second.ordinal;
      gpu.architecture = known->second.architecture;
      gpu.fd_handles = known->second.fds;
    }
  }

 private:
  struct Cuda {
    int ordinal = -1;
    int architecture = 0;
    bool fds = false;
  };

  void read_device(bool instance, std::istringstream& words, const std::string& line) {
    std::map<std::string, std::string> values;
    std::string address;
    words >> address;
    for (std::string word; words >> word;) {
      const std::size_t is = word.find('=');
      if (is == std::string::npos) refuse(line);
      std::string value = word.substr(is + 1);
      if (word.substr(0, is) == "name") {  // takes the rest of the line
        std::string rest;
        std::getline(words, rest);
        value += rest;
      }
      values[word.substr(0, is)] = value;
    }
    const auto number = [&](const char* name) {
      return values.contains(name) ? std::stoi(values[name]) : 0;
    };
    const Cuda cuda{number("cuda"), number("sm"), number("fds") != 0};
    if (instance) {
      nvml_.devices.back().instances.push_back(values["uuid"]);
      cuda_[values["uuid"]] = {cuda.ordinal, whole_.architecture, whole_.fds};
      return;
    }
    whole_ = cuda;
    cuda_[values["uuid"]] = cuda;
    FakeNvml::Device device;
    device.pci = address;
    device.uuid = values["uuid"];
    device.name = values["name"];
    const std::string pcie = values["pcie"];
    device.pcie_generation = static_cast<unsigned>(std::stoul(pcie));
    device.pcie_width = static_cast<unsigned>(std::stoul(pcie.substr(pcie.find('x') + 1)));
    device.link_megabytes = static_cast<unsigned>(number("link_mbytes"));
    device.links.resize(static_cast<std::size_t>(number("switches")));
    nvml_.devices.push_back(std::move(device));
  }

  void read_pairs(const std::string& kind, std::istringstream& words, const std::string& line) {
    std::string from_text;
    std::string to_text;
    int count = 0;
    words >> from_text >> to_text;
    if (kind == "links") words >> count;
    for (const int from : numbers_in(from_text)) {
      for (const int to : numbers_in(to_text)) {
        if (from == to) continue;
        auto& device = nvml_.devices.at(static_cast<std::size_t>(from));
        const std::string& remote = nvml_.devices.at(static_cast<std::size_t>(to)).pci;
        if (kind == "links") {
          for (int i = 0; i < count; ++i) {
            device.links.push_back({true, NvmlConstants::kRemoteGpu, remote});
          }
        } else if (kind == "refused") {
          nvml_.refused.push_back({from, to, NvmlConstants::read});
        } else if (kind == "atomics") {
          atomics_.emplace(from, to);
        } else {
          refuse(line);
        }
      }
    }
  }

  FakeNvml& nvml_;
  std::map<std::string, Cuda> cuda_;       // by UUID
  std::set<std::pair<int, int>> atomics_;  // pairs of GPUs, numbered as in the file
  Cuda whole_;
};

std::string nic_text(const Machine& machine, int nic) {
  if (nic < 0) return "none";
  const Nic& one = machine.nics[static_cast<std::size_t>(nic)];
  return fmt::format("{}:{}", one.name, one.port);
}

std::string list_text(const std::vector<int>& numbers) {
  return numbers.empty() ? "none" : ranges_of(numbers);
}

std::string choice_text(const Machine& machine, const NicChoice& choice) {
  if (choice.primary < 0) return "no NIC";
  return fmt::format("NIC {} ({}), backup {}", nic_text(machine, choice.primary),
                     name_of(choice.distance), nic_text(machine, choice.backup));
}

/// Prints one line for each group of GPUs that the same kind of path reaches.
std::string paths_text(const std::vector<std::vector<Path>>& paths) {
  std::string text;
  for (std::size_t from = 0; from < paths.size(); ++from) {
    std::vector<std::pair<std::string, std::vector<int>>> kinds;
    for (std::size_t to = 0; to < paths.size(); ++to) {
      if (from == to) continue;
      const Path& path = paths[from][to];
      const std::string words =
          fmt::format("{}, {} hop{}, {:.0f} Gbit/s, {}{}", name_of(path.kind), path.hops,
                      path.hops == 1 ? "" : "s", path.gbps, name_of(path.distance),
                      path.atomics ? ", atomics" : "");
      auto known = std::find_if(kinds.begin(), kinds.end(),
                                [&](const auto& one) { return one.first == words; });
      if (known == kinds.end()) known = kinds.insert(kinds.end(), {words, {}});
      known->second.push_back(static_cast<int>(to));
    }
    for (const auto& [words, targets] : kinds) {
      text += fmt::format("  {} to {}: {}\n", from, list_text(targets), words);
    }
  }
  return text;
}

}  // namespace

std::vector<std::string> fixture_names() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(kFolder)) {
    if (std::filesystem::exists(entry.path() / kDescription)) {
      names.push_back(entry.path().filename().string());
    }
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::string fixture_path(const std::string& name, const std::string& file_name) {
  return kFolder + name + "/" + file_name;
}

std::string fixture_text(const std::string& name, const std::string& file_name) {
  return test::text_of_file(fixture_path(name, file_name));
}

Machine load_fixture(const std::string& name) {
  const TemporaryTree tree;
  unpack(fixture_text(name, "tree"), tree);
  FakeNvml nvml;
  const GpuFacts facts(fixture_text(name, "gpus"), nvml);
  NvmlLibrary library = nvml.library();
  if (nvml.devices.empty()) library.missing = "there is no NVML";
  HwlocLibrary none{};
  none.missing = "descriptions are read without it";
  DiscoverOptions options;
  options.root = tree.root();
  options.hwloc_xml = fixture_text(name, kDescription);
  auto found = discover(options, none, library);
  if (!found.ok()) throw std::runtime_error(name + ": " + found.error().to_string());
  Machine machine = std::move(found).value();
  facts.add_to(machine);
  assume_link_speeds(machine.gpus);  // discovery does so once CUDA reports the architecture
  return canonical(std::move(machine));
}

std::string decisions_text(const Machine& machine) {
  const auto count = static_cast<int>(machine.gpus.size());
  const auto teams =
      form_mutual_groups(count, [&](int from, int to) { return may_map(machine, from, to); });
  const auto reach = reach_lists(machine);
  std::string text = "teams\n";
  std::vector<std::string> seats(machine.gpus.size());
  for (std::size_t team = 0; team < teams.size(); ++team) {
    text += fmt::format("  {}: GPUs {}\n", team, list_text(teams[team]));
    for (std::size_t rail = 0; rail < teams[team].size(); ++rail) {
      seats[static_cast<std::size_t>(teams[team][rail])] =
          fmt::format("team {}, rail {}", team, rail);
    }
  }
  text += "GPUs\n";
  const auto nics = choose_nics(machine);
  for (std::size_t i = 0; i < machine.gpus.size(); ++i) {
    const Gpu& gpu = machine.gpus[i];
    const std::string numa =
        gpu.numa < 0 ? "unknown"
                     : fmt::format("{}", machine.numa[static_cast<std::size_t>(gpu.numa)].os_index);
    text += fmt::format("  {} {}: {}, {}, NUMA node {}, mapped by {}\n", i,
                        gpu.pci ? gpu.pci->to_string() : "?", seats[i],
                        choice_text(machine, nics[i]), numa, list_text(reach[i]));
  }
  text += "NUMA nodes\n";
  const auto nodes = choose_nics_of_numa_nodes(machine);
  for (std::size_t i = 0; i < machine.numa.size(); ++i) {
    text += fmt::format("  {}: CPUs {}, {}\n", machine.numa[i].os_index,
                        list_text(machine.numa[i].cpus), choice_text(machine, nodes[i]));
  }
  return text + "paths\n" + paths_text(all_paths(machine));
}

}  // namespace oriel::topo
