// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "topo/sources/fake_nvml.hpp"

#include <algorithm>
#include <cstring>

namespace oriel::topo {
namespace {

thread_local FakeNvml* fake = nullptr;

// A device's handle is 1 + its index. A MIG instance's handle is 1000 times the device's handle,
// plus 1 + the instance's index.
NvmlDevice handle_of(std::size_t number) {
  return reinterpret_cast<NvmlDevice>(number);
}
std::size_t number_of(NvmlDevice device) {
  return reinterpret_cast<std::size_t>(device);
}
FakeNvml::Device& device_of(NvmlDevice device) {
  const std::size_t number = number_of(device);
  return fake->devices.at((number >= 1000 ? number / 1000 : number) - 1);
}

NvmlStatus write(const std::string& text, char* out, unsigned bytes) {
  if (text.size() >= bytes) return NvmlStatus::invalid_argument;
  std::memcpy(out, text.c_str(), text.size() + 1);
  return NvmlStatus::success;
}

void write_pci(const std::string& text, NvmlPciInfo* info) {
  *info = {};
  std::strncpy(info->bus_id, text.c_str(), sizeof info->bus_id - 1);
}

NvmlStatus init(unsigned) {
  if (fake->init == NvmlStatus::success) ++fake->open;
  return fake->init;
}
NvmlStatus shutdown() {
  --fake->open;
  return NvmlStatus::success;
}
NvmlStatus driver_version(char* text, unsigned bytes) {
  return write("580.159", text, bytes);
}
NvmlStatus device_count(unsigned* count) {
  *count = static_cast<unsigned>(fake->devices.size());
  return fake->count;
}
NvmlStatus device_by_index(unsigned index, NvmlDevice* device) {
  if (fake->devices.at(index).lost) return NvmlStatus::gpu_is_lost;
  *device = handle_of(index + 1);
  return NvmlStatus::success;
}
NvmlStatus name(NvmlDevice device, char* text, unsigned bytes) {
  return write(device_of(device).name + (number_of(device) >= 1000 ? " MIG 1g.18gb" : ""), text,
               bytes);
}
NvmlStatus uuid(NvmlDevice device, char* text, unsigned bytes) {
  const auto& one = device_of(device);
  const std::size_t number = number_of(device);
  return write(number >= 1000 ? one.instances.at(number % 1000 - 1) : one.uuid, text, bytes);
}
NvmlStatus pci_info(NvmlDevice device, NvmlPciInfo* info) {
  write_pci(device_of(device).pci, info);
  return NvmlStatus::success;
}
NvmlStatus link_state(NvmlDevice device, unsigned link, unsigned* active) {
  const auto& links = device_of(device).links;
  if (links.empty()) return NvmlStatus::not_supported;
  *active = link < links.size() && links[link].active ? 1 : 0;
  return NvmlStatus::success;
}
NvmlStatus link_remote_type(NvmlDevice device, unsigned link, unsigned* type) {
  *type = device_of(device).links.at(link).type;
  return NvmlStatus::success;
}
NvmlStatus link_remote_pci(NvmlDevice device, unsigned link, NvmlPciInfo* info) {
  write_pci(device_of(device).links.at(link).remote, info);
  return NvmlStatus::success;
}
NvmlStatus field_values(NvmlDevice device, int count, NvmlFieldValue* values) {
  for (int i = 0; i < count; ++i) {
    const bool known = values[i].field == NvmlConstants::kLinkSpeedField;
    values[i].status = known ? NvmlStatus::success : NvmlStatus::not_supported;
    values[i].value.as_unsigned = device_of(device).link_megabytes;
  }
  return NvmlStatus::success;
}
NvmlStatus p2p_status(NvmlDevice from, NvmlDevice to, unsigned capability, unsigned* status) {
  if (!fake->knows_peers) return NvmlStatus::not_supported;
  *status = 0;
  for (const FakeNvml::Refused& one : fake->refused) {
    const bool pair = one.from + 1 == static_cast<int>(number_of(from)) &&
                      one.to + 1 == static_cast<int>(number_of(to));
    // NVML's answer for NVLink includes read and write, but not atomics.
    const bool included =
        capability == NvmlConstants::nvlink && one.capability != NvmlConstants::atomics;
    if (pair && (one.capability == capability || included)) *status = 1;
  }
  return NvmlStatus::success;
}
NvmlStatus fabric_info(NvmlDevice device, NvmlFabricInfo* info) {
  *info = device_of(device).fabric;
  return NvmlStatus::success;
}
NvmlStatus pcie_generation(NvmlDevice device, unsigned* generation) {
  *generation = device_of(device).pcie_generation;
  return NvmlStatus::success;
}
NvmlStatus pcie_width(NvmlDevice device, unsigned* lanes) {
  *lanes = device_of(device).pcie_width;
  return NvmlStatus::success;
}
NvmlStatus mig_mode(NvmlDevice device, unsigned* current, unsigned* pending) {
  *current = *pending = device_of(device).instances.empty() ? 0 : 1;
  return NvmlStatus::success;
}
NvmlStatus mig_most(NvmlDevice, unsigned* count) {
  *count = 7;
  return NvmlStatus::success;
}
NvmlStatus mig_device(NvmlDevice device, unsigned index, NvmlDevice* instance) {
  if (index >= device_of(device).instances.size()) return NvmlStatus::not_found;
  *instance = handle_of(number_of(device) * 1000 + index + 1);
  return NvmlStatus::success;
}

}  // namespace

FakeNvml::FakeNvml() : previous_(fake) {
  fake = this;
}
FakeNvml::~FakeNvml() {
  fake = previous_;
}

NvmlLibrary FakeNvml::library() const {
  NvmlLibrary library;
#define ORIEL_DETAIL_FILL(member, symbol, parameters) library.table.member = &topo::member;
  ORIEL_NVML_CALLS(ORIEL_DETAIL_FILL)
#undef ORIEL_DETAIL_FILL
  return library;
}

}  // namespace oriel::topo
