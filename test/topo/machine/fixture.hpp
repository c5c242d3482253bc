// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "topo/model/machine.hpp"

/// The machines under test/topo/fixtures, a folder each. The head of each file says whether the
/// machine was captured or composed.
///
///   hwloc.xml  what lstopo would write
///   tree       the files of /sys that count, packed as text
///   gpus       what NVML and CUDA would answer, for NVIDIA's GPUs
///   expected   what is decided about it
///   nccl.xml   how it is written in NCCL's format
///
/// The last two are results: a test with ORIEL_UPDATE_FIXTURES=1 in its environment writes them.
namespace oriel::topo {

/// The names of all fixtures, sorted.
std::vector<std::string> fixture_names();

/// A file of a fixture: its text, empty if there is none, and its path.
std::string fixture_text(const std::string& name, const std::string& file_name);
std::string fixture_path(const std::string& name, const std::string& file_name);

/// The machine as discovery finds it: hwloc's description read, /sys from a folder that the tree
/// was unpacked to, a model of NVML, and what CUDA says added. Throws std::runtime_error for what
/// makes no sense.
Machine load_fixture(const std::string& name);

/// What is decided about a machine, for a person and for diff: teams, rails, NICs with backups,
/// paths.
std::string decisions_text(const Machine& machine);

}  // namespace oriel::topo
