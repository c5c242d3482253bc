// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "topo/machine/machine_file.hpp"

#include <fmt/format.h>

#include "base/try.hpp"
#include "base/write_file.hpp"
#include "topo/machine/discover.hpp"
#include "topo/xml/nccl_xml.hpp"

namespace oriel::topo {
namespace {

Result<Machine> read_text(const std::string& text) {
  ORIEL_TRY(const XmlElement root, parse_xml(text));
  if (root.name != "topology") return read_nccl_xml(text);
  DiscoverOptions options;
  options.root = "/nowhere";
  options.hwloc_xml = text;
  options.gpus = false;
  options.nics = false;
  return discover(options);
}

}  // namespace

Result<Machine> read_machine_file(const std::string& path, const XmlLimits& limits) {
  const auto in_context = [&](Error error) {
    return std::move(error).with_context(
        fmt::format("reading the description of a machine, {}", path));
  };
  auto text = read_xml_file(path, limits);
  if (!text.ok()) return in_context(std::move(text).error());
  auto machine = read_text(*text);
  if (!machine.ok()) return in_context(std::move(machine).error());
  machine->sources.push_back({path, SourceReport::Outcome::used, "instead of this machine"});
  return machine;
}

Status dump_machine(const Machine& machine, const std::string& path) {
  return write_file(path, write_nccl_xml(machine));
}

}  // namespace oriel::topo
