// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
// Fuzzes the reader of hwloc's machine descriptions, with xml_mutator.cpp.
#include "fuzz/input.hpp"
#include "topo/choice/nic_choice.hpp"
#include "topo/choice/paths.hpp"
#include "topo/xml/hwloc_xml_reader.hpp"
#include "topo/xml/nccl_xml.hpp"

using namespace oriel;
using namespace oriel::topo;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  auto list = read_hwloc_xml({reinterpret_cast<const char*>(data), size});
  if (!list.ok()) return 0;
  Machine machine;
  machine.numa = std::move(list->numa);
  machine.pci = std::move(list->pci);
  machine.gpus = std::move(list->gpus);
  machine.nics = std::move(list->nics);
  if (!check(machine).ok()) return 0;
  // An accepted machine can be sorted, decided about, and written.
  const Machine sorted = canonical(std::move(machine));
  expect(check(sorted).ok());
  expect(canonical(sorted) == sorted);
  static_cast<void>(choose_nics(sorted));
  static_cast<void>(choose_nics_of_numa_nodes(sorted));
  static_cast<void>(all_paths(sorted));
  expect(read_nccl_xml(write_nccl_xml(sorted)).ok());
  return 0;
}
