// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include <fmt/format.h>

#include "topo/model/distance.hpp"
#include "topo/model/printable.hpp"
#include "topology/summary.hpp"

namespace oriel::tools {
namespace {

using Row = std::vector<std::string>;

// Limits of cells, because vendors' names may have any length.
constexpr std::size_t kMostNameLetters = 48;
constexpr std::size_t kMostNicLetters = 24;
constexpr std::size_t kLeastCpuLetters = 16;

/// Returns the letters of a list of processors that fit beside a GPU's name; 0: no limit.
std::size_t cpu_letters(std::size_t width) {
  constexpr std::size_t kGpuColumn = 8;
  return width == 0 ? 0 : std::max(width, kLeastCpuLetters + kGpuColumn) - kGpuColumn;
}

std::string shown(const std::string& name, std::size_t most) {
  return name.empty() ? "-" : topo::fitted(topo::printable(name), most);
}

/// Columns [first, last) of rows. If these leave out column 0, column 0 stands in front.
struct Block {
  std::size_t first;
  std::size_t last;
};

std::string aligned(const std::vector<Row>& rows, const std::vector<std::size_t>& widths,
                    Block block) {
  std::string text;
  for (const Row& row : rows) {
    std::string line;
    const auto add = [&](std::size_t i) {
      if (i >= row.size()) return;
      line += row[i] + std::string(widths[i] - topo::letters_of(row[i]) + 2, ' ');
    };
    if (block.first > 0) add(0);
    for (std::size_t i = block.first; i < block.last; ++i) add(i);
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  return text;
}

/// Aligns columns to their widest cells. If the table is wider than `width`, splits it into blocks
/// of columns, each with column 0. A block then starts at each of `breaks`. `width` 0: no limit.
std::string aligned(const std::vector<Row>& rows, std::size_t width = 0,
                    const std::vector<std::size_t>& breaks = {}) {
  std::vector<std::size_t> widths;
  for (const Row& row : rows) {
    widths.resize(std::max(widths.size(), row.size()), 0);
    for (std::size_t i = 0; i < row.size(); ++i) {
      widths[i] = std::max(widths[i], topo::letters_of(row[i]));
    }
  }
  std::size_t all = 0;
  for (const std::size_t one : widths) all += one + 2;
  if (width == 0 || all <= width + 2) return aligned(rows, widths, {0, widths.size()});
  std::vector<Block> blocks{{0, 0}};
  std::size_t used = 0;
  for (std::size_t i = 0; i < widths.size(); ++i) {
    const bool asked = std::find(breaks.begin(), breaks.end(), i) != breaks.end();
    const bool full = i > 1 && used + widths[i] > width;
    if ((asked || full) && blocks.back().last > 0) {
      blocks.push_back({i, i});
      used = widths[0] + 2;
    }
    blocks.back().last = i + 1;
    used += widths[i] + 2;
  }
  std::string text;
  for (const Block& block : blocks) {
    if (!text.empty()) text += "\n";
    text += aligned(rows, widths, block);
  }
  return text;
}

std::string numa_text(const topo::Machine& machine, int numa) {
  if (numa < 0) return "-";
  return fmt::format("{}", machine.numa[static_cast<std::size_t>(numa)].os_index);
}

std::string matrix(const Summary& summary, std::size_t width) {
  const topo::Machine& machine = summary.machine;
  const auto gpus = static_cast<int>(machine.gpus.size());
  const auto nics = static_cast<int>(machine.nics.size());
  Row head{"from"};
  for (int gpu = 0; gpu < gpus; ++gpu) head.push_back(fmt::format("GPU{}", gpu));
  for (int nic = 0; nic < nics; ++nic) head.push_back(fmt::format("NIC{}", nic));
  for (const char* name : {"team", "rail", "NIC", "backup", "NUMA", "CPUs"}) head.push_back(name);
  std::vector<Row> rows{head};
  for (int gpu = 0; gpu < gpus; ++gpu) {
    const topo::Gpu& one = machine.gpus[static_cast<std::size_t>(gpu)];
    const topo::NicChoice& choice = summary.nics[static_cast<std::size_t>(gpu)];
    Row row{fmt::format("GPU{}", gpu)};
    for (int other = 0; other < gpus; ++other) row.push_back(path_text(summary, gpu, other));
    for (const topo::Nic& nic : machine.nics) {
      row.emplace_back(topo::name_of(
          topo::route_between(machine, topo::place_of(one), topo::place_of(nic)).distance));
    }
    row.push_back(fmt::format("{}", summary.team[static_cast<std::size_t>(gpu)]));
    row.push_back(fmt::format("{}", summary.rail[static_cast<std::size_t>(gpu)]));
    row.push_back(shown(nic_text(machine, choice.primary), kMostNicLetters));
    row.push_back(shown(nic_text(machine, choice.backup), kMostNicLetters));
    row.push_back(numa_text(machine, one.numa));
    row.push_back(shown(ranges_text(summary.affinities[static_cast<std::size_t>(gpu)].cpus),
                        cpu_letters(width)));
    rows.push_back(std::move(row));
  }
  const std::size_t first_nic = 1 + machine.gpus.size();
  return aligned(rows, width, {first_nic, first_nic + machine.nics.size()});
}

/// Returns the GPU's CUDA device, or that CUDA hides the GPU; otherwise empty, as for GPUs of AMD.
std::string ordinal_text(const topo::Machine& machine, const topo::Gpu& gpu) {
  if (gpu.ordinal >= 0) return fmt::format("CUDA device {}", gpu.ordinal);
  return is_hidden(machine, gpu) ? "not visible to CUDA" : "";
}

/// Returns the highest speed of the GPU's PCIe link, which paths are judged by, and the present
/// speed if lower. An idle link lowers its speed but keeps its lanes, so unused lanes are reported
/// too.
std::string pcie_text(const topo::Machine& machine, const topo::Gpu& gpu) {
  if (gpu.pcie_gbps <= 0) return "";
  const topo::PciNode node =
      gpu.node >= 0 ? machine.pci[static_cast<std::size_t>(gpu.node)] : topo::PciNode{};
  const bool narrow = node.lanes_now > 0 && node.lanes_now < node.lanes;
  const bool slower = gpu.pcie_now_gbps > 0 && gpu.pcie_now_gbps < gpu.pcie_gbps * 0.99;
  return fmt::format("PCIe {:.0f} Gbit/s{}{}", gpu.pcie_gbps,
                     slower ? fmt::format(", now {:.0f}", gpu.pcie_now_gbps) : "",
                     narrow ? fmt::format(", {} of {} lanes", node.lanes_now, node.lanes) : "");
}

/// Returns the MIG instance or partition; empty for a whole GPU.
std::string part_text(const topo::Gpu& gpu) {
  if (gpu.mig_instance >= 0) return fmt::format(", MIG instance {}", gpu.mig_instance);
  return gpu.partition >= 0 ? fmt::format(", partition {}", gpu.partition) : "";
}

std::string speed_text(const topo::Nic& nic) {
  const std::string speed =
      nic.gbps > 0 ? fmt::format("{:.0f} Gbit/s", nic.gbps) : "speed not known";
  if (!nic.active) return "not active";
  return nic.physical
             ? fmt::format("{}, a virtual function of {}", speed, nic.physical->to_string())
             : speed;
}

std::string gpu_list(const Summary& summary, std::size_t width) {
  const topo::Machine& machine = summary.machine;
  std::vector<Row> rows;
  for (std::size_t i = 0; i < machine.gpus.size(); ++i) {
    const topo::Gpu& gpu = machine.gpus[i];
    rows.push_back({fmt::format("GPU{}", i), gpu.pci ? gpu.pci->to_string() : "-",
                    shown(gpu.name, kMostNameLetters) + part_text(gpu), ordinal_text(machine, gpu),
                    pcie_text(machine, gpu),
                    gpu.uuid.empty() ? "" : shown(gpu.uuid, kMostNameLetters)});
  }
  for (std::size_t i = 0; i < machine.nics.size(); ++i) {
    const topo::Nic& nic = machine.nics[i];
    rows.push_back({fmt::format("NIC{}", i), nic.pci ? nic.pci->to_string() : "-",
                    shown(nic_text(machine, static_cast<int>(i)), kMostNicLetters), speed_text(nic),
                    nic.interface.empty() ? "" : shown(nic.interface, kMostNicLetters)});
  }
  return aligned(rows, width);
}

std::string numa_list(const Summary& summary) {
  const topo::Machine& machine = summary.machine;
  std::vector<Row> rows;
  for (std::size_t i = 0; i < machine.numa.size(); ++i) {
    const topo::NicChoice& choice = summary.numa_nics[i];
    rows.push_back({fmt::format("NUMA node {}", machine.numa[i].os_index),
                    fmt::format("CPUs {}", ranges_text(machine.numa[i].cpus)),
                    "NIC " + shown(nic_text(machine, choice.primary), kMostNicLetters),
                    "backup " + shown(nic_text(machine, choice.backup), kMostNicLetters)});
  }
  return aligned(rows);
}

std::string processors_text(const Summary& summary) {
  const bool any = std::any_of(summary.affinities.begin(), summary.affinities.end(),
                               [](const topo::Affinity& one) { return one.kept_away; });
  std::string text;
  if (summary.processors) {
    text += fmt::format("A rank on the CPU, started like this: {}\n",
                        topo::describe(*summary.processors));
  }
  if (any)
    text += "Of some GPUs this program may use no processor near; their CPUs are left out.\n";
  return text;
}

/// Returns the network interfaces that ranks use; empty for another machine.
std::string interfaces_text(const Summary& summary) {
  std::string text;
  const auto add = [&](const std::string& whose, const topo::InterfaceChoice& choice) {
    if (choice.primary.empty()) return;
    text += fmt::format("{}: {}\n", whose, topo::printable(choice.reason));
  };
  for (std::size_t i = 0; i < summary.interfaces.size(); ++i) {
    add(fmt::format("Network interface of GPU{}", i), summary.interfaces[i]);
  }
  if (summary.cpu_interfaces)
    add("Network interface of a rank on the CPU", *summary.cpu_interfaces);
  return text;
}

constexpr const char* kLegend =
    "X     the same device\n"
    "NVn   n links of NVLink or xGMI, direct or to switches that both share\n"
    "nhop  over links of GPUs in between\n"
    "PIX   below one PCIe switch\n"
    "PXB   several PCIe switches, without the host bridge\n"
    "PHB   below one host bridge\n"
    "NODE  host bridges of one NUMA node\n"
    "SYS   across NUMA nodes\n"
    "( )   the memory cannot be mapped: data go through the host\n"
    "?     not known: the place, or behind ( ) whether the memory can be mapped\n"
    "team  GPUs that all map each other's memory; rail: the place in it\n"
    "CPUs  where the library's own threads run; -: they stay where they are\n";

/// Returns a note on the pairs of GPUs for which no source says if they map each other's memory.
std::string assumption_text(const Summary& summary) {
  if (summary.unknown_pairs == 0) return "";
  return fmt::format(
      "Of {} pair{} of GPUs no source says whether they map each other's memory (?). The teams "
      "here take it\nthat they do not; a communicator tries it, and says so if it fails.\n",
      summary.unknown_pairs, summary.unknown_pairs == 1 ? "" : "s");
}

}  // namespace

std::string table_of(const Summary& summary, std::size_t width) {
  const topo::Machine& machine = summary.machine;
  std::string text;
  if (!machine.host.empty()) text += fmt::format("Host {}\n\n", topo::printable(machine.host));
  if (machine.gpus.empty()) {
    text += "There is no GPU.\n\n";
  } else {
    text += matrix(summary, width) + "\n";
  }
  const std::string devices = gpu_list(summary, width);
  if (!devices.empty()) text += devices + "\n";
  if (!machine.numa.empty()) text += numa_list(summary) + "\n";
  const std::string processors = processors_text(summary) + interfaces_text(summary);
  if (!processors.empty()) text += processors + "\n";
  if (!machine.gpus.empty()) text += kLegend + assumption_text(summary) + "\n";
  for (const topo::SourceReport& one : machine.sources) {
    text += fmt::format("{}: {}, {}\n", topo::printable(one.source), topo::name_of(one.outcome),
                        topo::printable(one.detail));
  }
  return text;
}

}  // namespace oriel::tools
