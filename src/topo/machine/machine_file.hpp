// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "oriel/error.hpp"

#include "topo/model/machine.hpp"
#include "topo/xml/xml_reader.hpp"

namespace oriel::topo {

/// The machine that a file describes, in NCCL's format (<system>) or hwloc's (<topology>), which is
/// told by its first element. Nothing of the machine that this runs on goes into it.
Result<Machine> read_machine_file(const std::string& path, const XmlLimits& limits = {});

}  // namespace oriel::topo
