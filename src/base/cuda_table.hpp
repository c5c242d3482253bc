// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

#include <cuda.h>

#include "oriel/error.hpp"

/// CUDA driver calls that Oriel uses: X(member, symbol of <cuda.h>, driver version that introduced
/// the symbol's present prototype). libcuda is asked for exactly that version, so a newer driver
/// never returns a function of a later prototype.
#define ORIEL_CUDA_CALLS(X)                                                                   \
  X(init, cuInit, 2000)                                                                       \
  X(driver_get_version, cuDriverGetVersion, 2020)                                             \
  X(get_error_name, cuGetErrorName, 6000)                                                     \
  X(get_error_string, cuGetErrorString, 6000)                                                 \
  X(device_get, cuDeviceGet, 2000)                                                            \
  X(device_get_count, cuDeviceGetCount, 2000)                                                 \
  X(device_get_name, cuDeviceGetName, 2000)                                                   \
  X(device_get_uuid, cuDeviceGetUuid, 11040)                                                  \
  X(device_get_attribute, cuDeviceGetAttribute, 2000)                                         \
  X(device_get_pci_bus_id, cuDeviceGetPCIBusId, 4010)                                         \
  X(device_total_mem, cuDeviceTotalMem, 3020)                                                 \
  X(device_can_access_peer, cuDeviceCanAccessPeer, 4000)                                      \
  X(device_get_p2p_attribute, cuDeviceGetP2PAttribute, 8000)                                  \
  X(device_primary_ctx_retain, cuDevicePrimaryCtxRetain, 7000)                                \
  X(device_primary_ctx_release, cuDevicePrimaryCtxRelease, 11000)                             \
  X(ctx_push_current, cuCtxPushCurrent, 4000)                                                 \
  X(ctx_pop_current, cuCtxPopCurrent, 4000)                                                   \
  X(ctx_get_current, cuCtxGetCurrent, 4000)                                                   \
  X(ctx_get_device, cuCtxGetDevice, 2000)                                                     \
  X(mem_get_allocation_granularity, cuMemGetAllocationGranularity, 10020)                     \
  X(mem_create, cuMemCreate, 10020)                                                           \
  X(mem_release, cuMemRelease, 10020)                                                         \
  X(mem_export_to_shareable_handle, cuMemExportToShareableHandle, 10020)                      \
  X(mem_import_from_shareable_handle, cuMemImportFromShareableHandle, 10020)                  \
  X(mem_address_reserve, cuMemAddressReserve, 10020)                                          \
  X(mem_address_free, cuMemAddressFree, 10020)                                                \
  X(mem_map, cuMemMap, 10020)                                                                 \
  X(mem_unmap, cuMemUnmap, 10020)                                                             \
  X(mem_set_access, cuMemSetAccess, 10020)                                                    \
  X(mem_retain_allocation_handle, cuMemRetainAllocationHandle, 11000)                         \
  X(mem_get_allocation_properties_from_handle, cuMemGetAllocationPropertiesFromHandle, 10020) \
  X(mem_get_address_range, cuMemGetAddressRange, 3020)                                        \
  X(pointer_get_attribute, cuPointerGetAttribute, 4000)                                       \
  X(pointer_get_attributes, cuPointerGetAttributes, 7000)                                     \
  X(mem_alloc, cuMemAlloc, 3020)                                                              \
  X(mem_free, cuMemFree, 3020)                                                                \
  X(mem_host_alloc, cuMemHostAlloc, 2020)                                                     \
  X(mem_free_host, cuMemFreeHost, 2000)                                                       \
  X(mem_host_get_device_pointer, cuMemHostGetDevicePointer, 3020)                             \
  X(mem_host_register, cuMemHostRegister, 6050)                                               \
  X(mem_host_unregister, cuMemHostUnregister, 4000)                                           \
  X(mem_get_handle_for_address_range, cuMemGetHandleForAddressRange, 11070)                   \
  X(pointer_set_attribute, cuPointerSetAttribute, 6000)                                       \
  X(mem_get_info, cuMemGetInfo, 3020)                                                         \
  X(memcpy_h_to_d_async, cuMemcpyHtoDAsync, 3020)                                             \
  X(memcpy_d_to_h_async, cuMemcpyDtoHAsync, 3020)                                             \
  X(memcpy_d_to_d_async, cuMemcpyDtoDAsync, 3020)                                             \
  X(memcpy_async, cuMemcpyAsync, 4000)                                                        \
  X(memcpy_2d_async, cuMemcpy2DAsync, 3020)                                                   \
  X(memset_d32_async, cuMemsetD32Async, 3020)                                                 \
  X(stream_create, cuStreamCreate, 2000)                                                      \
  X(stream_destroy, cuStreamDestroy, 4000)                                                    \
  X(stream_synchronize, cuStreamSynchronize, 2000)                                            \
  X(stream_query, cuStreamQuery, 2000)                                                        \
  X(stream_wait_event, cuStreamWaitEvent, 3020)                                               \
  X(stream_get_id, cuStreamGetId, 12000)                                                      \
  X(stream_get_capture_info, cuStreamGetCaptureInfo, 12030)                                   \
  X(stream_update_capture_dependencies, cuStreamUpdateCaptureDependencies, 12030)             \
  X(stream_begin_capture, cuStreamBeginCapture, 10010)                                        \
  X(stream_end_capture, cuStreamEndCapture, 10000)                                            \
  X(graph_destroy, cuGraphDestroy, 10000)                                                     \
  X(graph_add_event_wait_node, cuGraphAddEventWaitNode, 11010)                                \
  X(graph_add_event_record_node, cuGraphAddEventRecordNode, 11010)                            \
  X(graph_add_dependencies, cuGraphAddDependencies, 12030)                                    \
  X(graph_remove_dependencies, cuGraphRemoveDependencies, 12030)                              \
  X(graph_retain_user_object, cuGraphRetainUserObject, 11030)                                 \
  X(user_object_create, cuUserObjectCreate, 11030)                                            \
  X(user_object_release, cuUserObjectRelease, 11030)                                          \
  X(event_create, cuEventCreate, 2000)                                                        \
  X(event_record, cuEventRecord, 2000)                                                        \
  X(event_query, cuEventQuery, 2000)                                                          \
  X(event_destroy, cuEventDestroy, 4000)                                                      \
  X(launch_kernel_ex, cuLaunchKernelEx, 11060)                                                \
  X(stream_wait_value_32, cuStreamWaitValue32, 11070)                                         \
  X(stream_batch_mem_op, cuStreamBatchMemOp, 11070)                                           \
  X(thread_exchange_stream_capture_mode, cuThreadExchangeStreamCaptureMode, 10010)

namespace oriel {

/// Driver calls behind pointers that a test can replace. Each has the prototype and the meaning of
/// its symbol in <cuda.h>. None is null: a call that the driver lacks returns
/// CUDA_ERROR_NOT_SUPPORTED. Without a driver, all return CUDA_ERROR_NOT_INITIALIZED.
struct CudaTable {
// NOLINTNEXTLINE(bugprone-macro-parentheses): a declaration has no place for them
#define ORIEL_DETAIL_MEMBER(member, symbol, version) decltype(&symbol) member;
  ORIEL_CUDA_CALLS(ORIEL_DETAIL_MEMBER)
#undef ORIEL_DETAIL_MEMBER
};

/// Returns the table in force: the driver's, loaded at the first call, unless a test has replaced
/// it. Never fails; see cuda_ready(). Thread-safe.
const CudaTable& cuda();

/// Returns whether a driver or a test's table is already loaded. Loads nothing. Thread-safe.
bool cuda_loaded();

/// Loads and initialises the driver. Fails if there is no libcuda, the driver is older than CUDA
/// 12, or it sees no device; the message says which. Loads the driver only once.
Status cuda_ready();

/// Puts `table` in force for the process while alive. For tests; the table must outlive this
/// object.
class ScopedCudaTable {
 public:
  explicit ScopedCudaTable(const CudaTable& table);
  ~ScopedCudaTable();
  ScopedCudaTable(const ScopedCudaTable&) = delete;
  ScopedCudaTable& operator=(const ScopedCudaTable&) = delete;

 private:
  const CudaTable* previous_;
};

/// Returns the memory of the device with this ordinal as a location for cuMem calls.
inline CUmemLocation device_location(int ordinal) {
  CUmemLocation location{};
  location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  location.id = ordinal;
  return location;
}

/// Returns the error for a driver call that returned `status`. `what` names the action, such as
/// "mapping 2097152 bytes". The message includes the driver's name and text for the status.
Error cuda_error(std::string_view what, CUresult status);

/// Returns success, or cuda_error(). Allocates nothing on success.
inline Status cuda_status(std::string_view what, CUresult status) {
  if (status == CUDA_SUCCESS) return {};
  return cuda_error(what, status);
}

}  // namespace oriel
