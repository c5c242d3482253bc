// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdio>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "base/cuda_table.hpp"

namespace oriel::topo {

/// Models the CUDA driver with these devices. The most recently created living instance answers.
/// The handle of a GPU is its number plus 100, which is also its bus and every byte of its UUID.
struct FakeDevices {
  std::vector<int> shown;  ///< the GPUs by ordinal
  std::string name = "NVIDIA H200";
  bool fabric_handles = false;
  std::function<bool(int from, int to)> maps = [](int, int) { return false; };
  std::function<bool(int from, int to)> atomics = [](int, int) { return true; };
  int counted = 0;  ///< number of queries of the device count

  explicit FakeDevices(std::vector<int> gpus) : shown(std::move(gpus)), previous_(current) {
    current = this;
  }
  ~FakeDevices() { current = previous_; }
  FakeDevices(const FakeDevices&) = delete;
  FakeDevices& operator=(const FakeDevices&) = delete;

  static CudaTable table();

 private:
  static inline FakeDevices* current = nullptr;
  FakeDevices* previous_;
};

inline CudaTable FakeDevices::table() {
  CudaTable table = cuda();
  table.init = [](unsigned) { return CUDA_SUCCESS; };
  table.driver_get_version = [](int* version) {
    *version = 13010;
    return CUDA_SUCCESS;
  };
  table.device_get_count = [](int* count) {
    ++current->counted;
    *count = static_cast<int>(current->shown.size());
    return CUDA_SUCCESS;
  };
  table.device_get = [](CUdevice* device, int ordinal) {
    const auto& shown = current->shown;
    if (ordinal < 0 || ordinal >= static_cast<int>(shown.size())) return CUDA_ERROR_INVALID_DEVICE;
    *device = shown[static_cast<std::size_t>(ordinal)] + 100;
    return CUDA_SUCCESS;
  };
  table.device_get_uuid = [](CUuuid* uuid, CUdevice device) {
    std::memset(uuid->bytes, device, sizeof uuid->bytes);
    return CUDA_SUCCESS;
  };
  table.device_get_name = [](char* text, int bytes, CUdevice) {
    std::snprintf(text, static_cast<std::size_t>(bytes), "%s", current->name.c_str());
    return CUDA_SUCCESS;
  };
  table.device_get_pci_bus_id = [](char* text, int bytes, CUdevice device) {
    std::snprintf(text, static_cast<std::size_t>(bytes), "0000:%02x:00.0",
                  static_cast<unsigned>(device));
    return CUDA_SUCCESS;
  };
  table.device_get_attribute = [](int* value, CUdevice_attribute which, CUdevice) {
    *value = which == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR                      ? 9
             : which == CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED ? 1
             : which == CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED ? current->fabric_handles
                                                                         : 0;
    return CUDA_SUCCESS;
  };
  table.device_can_access_peer = [](int* can, CUdevice from, CUdevice to) {
    if (from == to) return CUDA_ERROR_INVALID_DEVICE;
    *can = current->maps(from - 100, to - 100);
    return CUDA_SUCCESS;
  };
  table.device_get_p2p_attribute = [](int* value, CUdevice_P2PAttribute, CUdevice from,
                                      CUdevice to) {
    *value = current->atomics(from - 100, to - 100);
    return CUDA_SUCCESS;
  };
  return table;
}

}  // namespace oriel::topo
