// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "fuzz/input.hpp"
#include "topo/choice/nic_choice.hpp"
#include "topo/choice/paths.hpp"
#include "topo/xml/nccl_xml.hpp"

using namespace oriel;
using namespace oriel::topo;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto machine = read_nccl_xml(text);
  if (!machine.ok()) return 0;
  // An accepted machine is valid, can be decided about, and survives a write and read.
  expect(check(*machine).ok());
  static_cast<void>(choose_nics(*machine));
  static_cast<void>(all_paths(*machine));
  const std::string written = write_nccl_xml(*machine);
  const auto again = read_nccl_xml(written);
  expect(again.ok());
  expect(again->gpus.size() == machine->gpus.size());
  expect(write_nccl_xml(*again) == written);
  return 0;
}
