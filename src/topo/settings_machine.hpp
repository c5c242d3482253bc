// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "oriel/error.hpp"

#include "base/settings.hpp"
#include "topo/machine.hpp"

namespace oriel::topo {

/// Writes a description in NCCL's format, in one step: whoever reads the file finds all of it.
Status dump_machine(const Machine& machine, const std::string& path);

/// The machine that `settings` name: that of topo_file, or else the one this runs on. Written to
/// topo_dump_file if there is one; that this failed is logged as a warning, no more. Blocking.
Result<Machine> machine_by_settings(const Settings& settings);

}  // namespace oriel::topo
