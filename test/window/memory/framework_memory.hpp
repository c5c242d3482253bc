// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <utility>
#include <vector>

#include <catch2/catch.hpp>

#include "base/cuda_table.hpp"

namespace oriel::test {

/// Memory that a framework allocated with the driver: `parts` allocations mapped back to back.
class Framework {
 public:
  Framework(std::vector<std::size_t> parts, int handle_types,
            CUmemLocation location = {CU_MEM_LOCATION_TYPE_DEVICE, {0}})
      : parts_(std::move(parts)) {
    CUmemAllocationProp wanted{};
    wanted.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    wanted.location = location;
    wanted.requestedHandleTypes = static_cast<CUmemAllocationHandleType>(handle_types);
    for (const std::size_t bytes : parts_) total_ += bytes;
    REQUIRE(cuda().mem_address_reserve(&base_, total_ + kGuardBytes, kGuardBytes, 0, 0) ==
            CUDA_SUCCESS);
    CUmemAccessDesc access{{CU_MEM_LOCATION_TYPE_DEVICE, {0}}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    if (location.type == CU_MEM_LOCATION_TYPE_DEVICE) access.location = location;
    CUdeviceptr at = base_;
    for (const std::size_t bytes : parts_) {
      CUmemGenericAllocationHandle handle = 0;
      REQUIRE(cuda().mem_create(&handle, bytes, &wanted, 0) == CUDA_SUCCESS);
      REQUIRE(cuda().mem_map(at, bytes, 0, handle, 0) == CUDA_SUCCESS);
      REQUIRE(cuda().mem_set_access(at, bytes, &access, 1) == CUDA_SUCCESS);
      REQUIRE(cuda().mem_release(handle) == CUDA_SUCCESS);
      at += bytes;
    }
  }
  ~Framework() {
    CUdeviceptr at = base_;
    for (const std::size_t bytes : parts_) {
      CHECK(cuda().mem_unmap(at, bytes) == CUDA_SUCCESS);
      at += bytes;
    }
    CHECK(cuda().mem_address_free(base_, total_ + kGuardBytes) == CUDA_SUCCESS);
  }
  Framework(const Framework&) = delete;
  Framework& operator=(const Framework&) = delete;
  char* base() const { return reinterpret_cast<char*>(base_); }

 private:
  // Reserved after the last part, so that nothing follows it. Also the alignment.
  static constexpr std::size_t kGuardBytes = std::size_t{2} << 20;
  std::vector<std::size_t> parts_;
  std::size_t total_ = 0;
  CUdeviceptr base_ = 0;
};

}  // namespace oriel::test
