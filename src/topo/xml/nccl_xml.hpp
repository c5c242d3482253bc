// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

#include "oriel/error.hpp"

#include "topo/model/machine.hpp"

/// NCCL's description of a machine, which NCCL_TOPO_FILE names and NCCL_TOPO_DUMP_FILE requests.
/// <system> contains <cpu>, <cpu> contains nested <pci>. A <pci> contains <gpu> with <nvlink>
/// (<xgmi> in AMD's RCCL) or <nic> with <net>. The format has no mappability. Several <net> with
/// one guid are ports of one card.
namespace oriel::topo {

/// Reads a machine and returns it in canonical order. GPUs with NVLinks to each other, or to
/// switches, count as able to map each other's memory; nothing is known about others. An NVLink has
/// the bandwidth of the GPU's architecture. The bandwidth of xGMI links stays unknown.
/// A function without <gpu> or <net> is recognised by its
/// class: clouds ship such files. A network card is then named by its PCI address.
///
/// Refuses, with line and reason, all that parse_xml() and check() refuse, missing mandatory
/// attributes, and malformed ones. Also refuses unknown elements in <system>, and many of them
/// elsewhere. Ignores
/// unknown attributes and a few unknown elements elsewhere, as NCCL does; Machine::sources reports
/// the latter.
Result<Machine> read_nccl_xml(std::string_view text);

/// Writes the machine in this format. Reading the text again returns what the format can represent.
/// Omits unknown values: NCCL trusts what it reads, and looks for missing values itself.
std::string write_nccl_xml(const Machine& machine);

}  // namespace oriel::topo
