// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

#include "oriel/error.hpp"

#include "topo/model/machine.hpp"

/// NCCL's description of a machine, which NCCL_TOPO_FILE names and NCCL_TOPO_DUMP_FILE asks for:
/// <system>, in it <cpu>, in it <pci> in <pci>, in them <gpu> with <nvlink> (<xgmi> in that of
/// AMD's RCCL), and <nic> with <net>.
/// NCCL's format knows neither who may map whose memory nor cards with several ports.
namespace oriel::topo {

/// The machine in canonical order. GPUs that have NVLinks to each other, or to switches, count as
/// able to map each other's memory; of the others nothing is known. A link carries what
/// those of the GPU's architecture do. A function without <gpu> or <net> is what its class says:
/// clouds ship such files. A network card is named by its PCI address then.
/// Refused, with line and reason: what parse_xml() and check() refuse, missing or odd attributes,
/// unknown elements in <system>, and many elsewhere. Unknown attributes, and a few unknown elements
/// elsewhere, are left out, as NCCL does; Machine::sources tells of the latter.
Result<Machine> read_nccl_xml(std::string_view text);

/// The same format. Reading it again yields what the format can hold. What is not known is left
/// out, for NCCL believes what it reads, and looks itself for what is not there.
std::string write_nccl_xml(const Machine& machine);

}  // namespace oriel::topo
