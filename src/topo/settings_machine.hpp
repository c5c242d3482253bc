// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "oriel/error.hpp"

#include "base/settings.hpp"
#include "topo/machine.hpp"

namespace oriel::topo {

/// Writes a description in NCCL's format. A plain file is replaced in one step: whoever reads it
/// finds all of it. What a link names, and devices, are written to; pipes and sockets are refused.
Status dump_machine(const Machine& machine, const std::string& path);

/// The machine that `settings` name: that of topo_file, or else the one this runs on. Blocking.
Result<Machine> machine_by_settings(const Settings& settings);

}  // namespace oriel::topo
