// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "base/cuda_table.hpp"

#include <atomic>

#include <dlfcn.h>
#include <fmt/format.h>

namespace oriel {
namespace {

/// Stands in for a function that the driver lacks.
template <CUresult status, typename... Args>
CUresult CUDAAPI refuse(Args...) {
  return status;
}

template <CUresult status, typename... Args>
void fill(CUresult(CUDAAPI*& member)(Args...)) {
  member = refuse<status, Args...>;
}

struct Driver {
  CudaTable table;
  std::string missing;  // reason why there is no driver; empty if there is one
};

using GetProcAddress = decltype(&cuGetProcAddress);

template <typename Function>
void look_up(GetProcAddress get, const char* symbol, int version, Function& member) {
  void* found = nullptr;
  CUdriverProcAddressQueryResult query = CU_GET_PROC_ADDRESS_SUCCESS;
  const CUresult status = get(symbol, &found, version, CU_GET_PROC_ADDRESS_LEGACY_STREAM, &query);
  if (status == CUDA_SUCCESS && query == CU_GET_PROC_ADDRESS_SUCCESS && found != nullptr) {
    member = reinterpret_cast<Function>(found);
  } else {
    fill<CUDA_ERROR_NOT_SUPPORTED>(member);
  }
}

Driver load_driver() {
  Driver driver;
#define ORIEL_DETAIL_FILL(member, symbol, version) \
  fill<CUDA_ERROR_NOT_INITIALIZED>(driver.table.member);
  ORIEL_CUDA_CALLS(ORIEL_DETAIL_FILL)
#undef ORIEL_DETAIL_FILL
  // Never closed: the driver has its own threads, and the CUDA runtime uses it too.
  void* library = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* why = ::dlerror();
    driver.missing = fmt::format("there is no CUDA driver ({})",
                                 why != nullptr ? why : "libcuda.so.1 cannot be loaded");
    return driver;
  }
  const auto get = reinterpret_cast<GetProcAddress>(::dlsym(library, "cuGetProcAddress_v2"));
  if (get == nullptr) {
    driver.missing = "the CUDA driver is older than CUDA 12.0";
    return driver;
  }
#define ORIEL_DETAIL_LOOK_UP(member, symbol, version) \
  look_up(get, #symbol, version, driver.table.member);
  ORIEL_CUDA_CALLS(ORIEL_DETAIL_LOOK_UP)
#undef ORIEL_DETAIL_LOOK_UP
  return driver;
}

std::atomic<const CudaTable*> replacement{nullptr};
std::atomic<bool> loaded{false};

const Driver& real_driver() {
  // Never destroyed: threads of the library may still make calls while the process exits.
  static const Driver& driver = *[] {
    auto* const made = new Driver(load_driver());
    loaded.store(made->missing.empty(), std::memory_order_release);
    return made;
  }();
  return driver;
}

}  // namespace

const CudaTable& cuda() {
  const CudaTable* replaced = replacement.load(std::memory_order_acquire);
  return replaced != nullptr ? *replaced : real_driver().table;
}

bool cuda_loaded() {
  return replacement.load(std::memory_order_acquire) != nullptr ||
         loaded.load(std::memory_order_acquire);
}

Status cuda_ready() {
  const CudaTable* replaced = replacement.load(std::memory_order_acquire);
  if (replaced == nullptr && !real_driver().missing.empty()) {
    return Error(ErrorCode::cuda, real_driver().missing)
        .with_hint("install NVIDIA's driver 525 or later, or use CPU ranks (ORIEL_BACKEND=host)")
        .with_native(NativeDomain::cuda_driver, CUDA_ERROR_NOT_INITIALIZED);
  }
  int devices = 0;
  CUresult status = cuda().init(0);
  if (status == CUDA_SUCCESS) status = cuda().device_get_count(&devices);
  if (status == CUDA_SUCCESS && devices == 0) status = CUDA_ERROR_NO_DEVICE;
  if (status == CUDA_ERROR_NO_DEVICE) {
    return Error(ErrorCode::cuda, "the CUDA driver sees no device")
        .with_hint(
            "make a GPU visible (CUDA_VISIBLE_DEVICES), or use CPU ranks "
            "(ORIEL_BACKEND=host)")
        .with_native(NativeDomain::cuda_driver, status);
  }
  return cuda_status("initialising the CUDA driver", status);
}

ScopedCudaTable::ScopedCudaTable(const CudaTable& table)
    : previous_(replacement.exchange(&table, std::memory_order_acq_rel)) {}

ScopedCudaTable::~ScopedCudaTable() {
  replacement.store(previous_, std::memory_order_release);
}

Error cuda_error(std::string_view what, CUresult status) {
  const char* name = nullptr;
  const char* text = nullptr;
  if (cuda().get_error_name(status, &name) != CUDA_SUCCESS) name = nullptr;
  if (cuda().get_error_string(status, &text) != CUDA_SUCCESS) text = nullptr;
  std::string message = fmt::format("{} failed", what);
  if (name != nullptr) message += fmt::format(": {}", name);
  if (text != nullptr) message += fmt::format(" ({})", text);
  return Error(ErrorCode::cuda, std::move(message)).with_native(NativeDomain::cuda_driver, status);
}

}  // namespace oriel
