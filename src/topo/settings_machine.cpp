// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "topo/settings_machine.hpp"

#include <cerrno>
#include <cstdio>
#include <fstream>

#include <fmt/format.h>
#include <unistd.h>

#include "base/log.hpp"
#include "base/system_table.hpp"
#include "topo/discover.hpp"
#include "topo/machine_file.hpp"
#include "topo/nccl_xml.hpp"

namespace oriel::topo {
namespace {

/// Replaces the file in one step, for several processes may write it at once.
Status write_file(const std::string& path, const std::string& text) {
  const std::string draft = fmt::format("{}.{}", path, ::getpid());
  std::ofstream file(draft, std::ios::trunc);
  file << text;
  file.close();
  if (file.good() && std::rename(draft.c_str(), path.c_str()) == 0) return {};
  const int status = errno;
  static_cast<void>(std::remove(draft.c_str()));
  return system_error(fmt::format("writing {}", path), status);
}

}  // namespace

Status dump_machine(const Machine& machine, const std::string& path) {
  return write_file(path, write_nccl_xml(machine));
}

Result<Machine> machine_by_settings(const Settings& settings) {
  Result<Machine> machine =
      settings.topo_file.empty() ? discover() : read_machine_file(settings.topo_file);
  if (machine.ok() && !settings.topo_dump_file.empty()) {
    const Status written = dump_machine(*machine, settings.topo_dump_file);
    if (!written.ok()) Log().warn("{}", written.error().to_string());
  }
  return machine;
}

}  // namespace oriel::topo
