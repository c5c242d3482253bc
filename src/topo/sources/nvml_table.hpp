// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

/// NVIDIA's management library (NVML), loaded at run time. Declared here, because CUDA's toolkit
/// does not always contain nvml.h. Layouts, names and numbers are those of the ABI of
/// libnvidia-ml.so.1 in its reference manual (driver branch 580).
namespace oriel::topo {

using NvmlDevice = void*;

enum class NvmlStatus : int {
  success = 0,
  uninitialized = 1,
  invalid_argument = 2,
  not_supported = 3,
  no_permission = 4,
  not_found = 6,
  driver_not_loaded = 9,
  library_not_found = 12,
  function_not_found = 13,
  gpu_is_lost = 15,
};

struct NvmlPciInfo {
  char bus_id_legacy[16];
  unsigned domain;
  unsigned bus;
  unsigned device;
  unsigned device_id;
  unsigned subsystem_id;
  char bus_id[32];
};

struct NvmlFieldValue {
  unsigned field;
  unsigned scope;
  long long timestamp;
  long long latency_us;
  unsigned value_type;
  NvmlStatus status;
  union {
    double as_double;
    unsigned as_unsigned;
    unsigned long long as_u64;
  } value;
};

struct NvmlFabricInfo {
  unsigned char cluster[16];
  NvmlStatus status;
  unsigned clique;
  unsigned char state;
};

static_assert(sizeof(NvmlPciInfo) == 68 && sizeof(NvmlFieldValue) == 40 &&
              sizeof(NvmlFabricInfo) == 28);

/// Constants of the ABI.
struct NvmlConstants {
  static constexpr unsigned kMostLinks = 18;
  static constexpr unsigned kLinkSpeedField = 90;   // MB/s of one link, one way
  static constexpr unsigned char kFabricReady = 3;  // the fabric's set-up is complete
  static constexpr unsigned kRemoteGpu = 0;
  static constexpr unsigned kRemoteSwitch = 2;
  enum Capability : unsigned { read = 0, write = 1, nvlink = 2, atomics = 3 };
};

/// X(member, symbol, parameters)
#define ORIEL_NVML_CALLS(X)                                                                     \
  X(init, nvmlInitWithFlags, (unsigned flags))                                                  \
  X(shutdown, nvmlShutdown, ())                                                                 \
  X(driver_version, nvmlSystemGetDriverVersion, (char* text, unsigned bytes))                   \
  X(device_count, nvmlDeviceGetCount_v2, (unsigned* count))                                     \
  X(device_by_index, nvmlDeviceGetHandleByIndex_v2, (unsigned index, NvmlDevice* device))       \
  X(name, nvmlDeviceGetName, (NvmlDevice device, char* text, unsigned bytes))                   \
  X(uuid, nvmlDeviceGetUUID, (NvmlDevice device, char* text, unsigned bytes))                   \
  X(pci_info, nvmlDeviceGetPciInfo_v3, (NvmlDevice device, NvmlPciInfo * info))                 \
  X(link_state, nvmlDeviceGetNvLinkState, (NvmlDevice device, unsigned link, unsigned* active)) \
  X(link_remote_type, nvmlDeviceGetNvLinkRemoteDeviceType,                                      \
    (NvmlDevice device, unsigned link, unsigned* type))                                         \
  X(link_remote_pci, nvmlDeviceGetNvLinkRemotePciInfo_v2,                                       \
    (NvmlDevice device, unsigned link, NvmlPciInfo* info))                                      \
  X(field_values, nvmlDeviceGetFieldValues,                                                     \
    (NvmlDevice device, int count, NvmlFieldValue* values))                                     \
  X(p2p_status, nvmlDeviceGetP2PStatus,                                                         \
    (NvmlDevice from, NvmlDevice to, unsigned capability, unsigned* status))                    \
  X(fabric_info, nvmlDeviceGetGpuFabricInfo, (NvmlDevice device, NvmlFabricInfo * info))        \
  X(pcie_generation, nvmlDeviceGetCurrPcieLinkGeneration,                                       \
    (NvmlDevice device, unsigned* generation))                                                  \
  X(pcie_width, nvmlDeviceGetCurrPcieLinkWidth, (NvmlDevice device, unsigned* lanes))           \
  X(mig_mode, nvmlDeviceGetMigMode, (NvmlDevice device, unsigned* current, unsigned* pending))  \
  X(mig_most, nvmlDeviceGetMaxMigDeviceCount, (NvmlDevice device, unsigned* count))             \
  X(mig_device, nvmlDeviceGetMigDeviceHandleByIndex,                                            \
    (NvmlDevice device, unsigned index, NvmlDevice* instance))

/// Function pointers that a test can replace. None is null: functions missing in the library return
/// function_not_found.
struct NvmlTable {
// NOLINTNEXTLINE(bugprone-macro-parentheses): a declaration has no place for them
#define ORIEL_DETAIL_MEMBER(member, symbol, parameters) NvmlStatus(*member) parameters;
  ORIEL_NVML_CALLS(ORIEL_DETAIL_MEMBER)
#undef ORIEL_DETAIL_MEMBER
};

/// Result of loading the library.
struct NvmlLibrary {
  NvmlTable table;
  std::string missing;  ///< why it cannot be used; else empty
};

/// Loads libnvidia-ml.so.1 at the first call and keeps it. Thread-safe.
const NvmlLibrary& nvml_library();

}  // namespace oriel::topo
