// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <cstdio>
#include <cstring>
#include <mutex>

#include "support/cuda/fake_cuda_state.hpp"

// Queries of devices, contexts and pointers.
namespace oriel::test {
namespace {

using Lock = std::lock_guard<std::mutex>;

CUresult device_get_uuid(CUuuid* uuid, CUdevice device) {
  if (!has_device(device)) return CUDA_ERROR_INVALID_DEVICE;
  // Returns the same UUID in every process, as for devices of one machine.
  std::memset(uuid->bytes, 0x5a, sizeof uuid->bytes);
  uuid->bytes[0] = static_cast<char>(fake->options.first_device + device);
  uuid->bytes[1] = static_cast<char>(fake->options.machine);
  return CUDA_SUCCESS;
}

CUresult device_get_pci_bus_id(char* out, int bytes, CUdevice device) {
  if (!has_device(device)) return CUDA_ERROR_INVALID_DEVICE;
  if (bytes < 13) return fake->violate("a PCI id needs 13 bytes");
  std::snprintf(out, static_cast<std::size_t>(bytes), "0000:%02x:00.0",
                static_cast<unsigned>(fake->options.first_device + device + 1) & 0xffu);
  return CUDA_SUCCESS;
}

CUresult device_total_mem(std::size_t* bytes, CUdevice device) {
  if (!has_device(device)) return CUDA_ERROR_INVALID_DEVICE;
  *bytes = fake->options.memory_bytes;
  return CUDA_SUCCESS;
}

CUresult ctx_get_current(CUcontext* context) {
  *context = context_stack.empty() ? nullptr : context_stack.back();
  return CUDA_SUCCESS;
}

CUresult ctx_get_device(CUdevice* device) {
  if (context_stack.empty()) return CUDA_ERROR_INVALID_CONTEXT;
  *device = current_device();
  return CUDA_SUCCESS;
}

CUresult pointer_get_attribute(void* value, CUpointer_attribute which, CUdeviceptr address) {
  const Lock lock(fake->mutex);
  const auto found = containing(fake->mappings, address);
  if (which != CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL || found == fake->mappings.end()) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const int ordinal = found->second.physical->properties.location.id;
  std::memcpy(value, &ordinal, sizeof ordinal);
  return CUDA_SUCCESS;
}

}  // namespace

void add_queries(CudaTable& table) {
  table.device_get_uuid = device_get_uuid;
  table.device_get_pci_bus_id = device_get_pci_bus_id;
  table.device_total_mem = device_total_mem;
  table.ctx_get_current = ctx_get_current;
  table.ctx_get_device = ctx_get_device;
  table.pointer_get_attribute = pointer_get_attribute;
}

}  // namespace oriel::test
