// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include <fmt/format.h>

#include "topo/distance.hpp"
#include "topology/summary.hpp"

namespace oriel::tools {
namespace {

using Row = std::vector<std::string>;

/// Columns as wide as their widest cell.
std::string aligned(const std::vector<Row>& rows) {
  std::vector<std::size_t> widths;
  for (const Row& row : rows) {
    widths.resize(std::max(widths.size(), row.size()), 0);
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string text;
  for (const Row& row : rows) {
    std::string line;
    for (std::size_t i = 0; i < row.size(); ++i) line += fmt::format("{:<{}}  ", row[i], widths[i]);
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  return text;
}

std::string numa_text(const topo::Machine& machine, int numa) {
  if (numa < 0) return "-";
  return fmt::format("{}", machine.numa[static_cast<std::size_t>(numa)].os_index);
}

std::string matrix(const Summary& summary) {
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
    row.push_back(nic_text(machine, choice.primary));
    row.push_back(nic_text(machine, choice.backup));
    row.push_back(numa_text(machine, one.numa));
    row.push_back(ranges_text(summary.affinities[static_cast<std::size_t>(gpu)].cpus));
    rows.push_back(std::move(row));
  }
  return aligned(rows);
}

std::string gpu_list(const Summary& summary) {
  const topo::Machine& machine = summary.machine;
  std::vector<Row> rows;
  for (std::size_t i = 0; i < machine.gpus.size(); ++i) {
    const topo::Gpu& gpu = machine.gpus[i];
    const std::string ordinal =
        gpu.ordinal >= 0 ? fmt::format("CUDA device {}", gpu.ordinal) : "not visible to CUDA";
    rows.push_back({fmt::format("GPU{}", i), gpu.pci ? gpu.pci->to_string() : "-", gpu.name,
                    gpu.uuid.empty() ? "-" : gpu.uuid, ordinal});
  }
  for (std::size_t i = 0; i < machine.nics.size(); ++i) {
    const topo::Nic& nic = machine.nics[i];
    rows.push_back({fmt::format("NIC{}", i), nic.pci ? nic.pci->to_string() : "-",
                    nic_text(machine, static_cast<int>(i)),
                    nic.interface.empty() ? "-" : nic.interface,
                    fmt::format("{:.0f} Gbit/s{}", nic.gbps, nic.active ? "" : ", not active")});
  }
  return aligned(rows);
}

std::string numa_list(const Summary& summary) {
  const topo::Machine& machine = summary.machine;
  std::vector<Row> rows;
  for (std::size_t i = 0; i < machine.numa.size(); ++i) {
    const topo::NicChoice& choice = summary.numa_nics[i];
    rows.push_back({fmt::format("NUMA node {}", machine.numa[i].os_index),
                    fmt::format("CPUs {}", ranges_text(machine.numa[i].cpus)),
                    fmt::format("NIC {}", nic_text(machine, choice.primary)),
                    fmt::format("backup {}", nic_text(machine, choice.backup))});
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
    "team  GPUs that all map each other's memory; rail: the place in it\n"
    "CPUs  where the library's own threads run; -: they stay where they are\n";

}  // namespace

std::string table_of(const Summary& summary) {
  const topo::Machine& machine = summary.machine;
  std::string text;
  if (!machine.host.empty()) text += fmt::format("Host {}\n\n", machine.host);
  if (machine.gpus.empty()) {
    text += "There is no GPU.\n\n";
  } else {
    text += matrix(summary) + "\n";
  }
  const std::string devices = gpu_list(summary);
  if (!devices.empty()) text += devices + "\n";
  if (!machine.numa.empty()) text += numa_list(summary) + "\n";
  const std::string processors = processors_text(summary);
  if (!processors.empty()) text += processors + "\n";
  if (!machine.gpus.empty()) text += std::string(kLegend) + "\n";
  for (const topo::SourceReport& one : machine.sources) {
    text += fmt::format("{}: {}, {}\n", one.source, topo::name_of(one.outcome), one.detail);
  }
  return text;
}

}  // namespace oriel::tools
