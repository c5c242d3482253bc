// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "topo/model/machine.hpp"

/// The machines under test/topo/fixtures, a folder each. The head of each file says whether the
/// machine was captured or composed.
///
///   hwloc.xml  the machine in hwloc's XML format.
///   tree       the files of /sys that matter, packed as text.
///   gpus       answers of NVML and CUDA, for NVIDIA's GPUs.
///   expected   the decisions for the machine.
///   nccl.xml   the machine in NCCL's format.
///
/// The last two are results: a test with ORIEL_UPDATE_FIXTURES=1 in its environment writes them.
namespace oriel::topo {

/// Returns the names of all fixtures, sorted.
std::vector<std::string> fixture_names();

/// Returns the text (empty if the file is absent) and the path of a fixture's file.
std::string fixture_text(const std::string& name, const std::string& file_name);
std::string fixture_path(const std::string& name, const std::string& file_name);

/// Loads the machine as discovery finds it: hwloc's description, /sys from a folder with the
/// unpacked tree, a model of NVML, and CUDA's facts. Throws std::exception for invalid input.
Machine load_fixture(const std::string& name);

/// Prints the decisions for a machine, readable and comparable with diff: teams, rails, NICs with
/// backups, paths.
std::string decisions_text(const Machine& machine);

}  // namespace oriel::topo
