// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include <catch2/catch.hpp>
#include <sys/socket.h>

#include "base/cuda_scope.hpp"
#include "net/process/nic_process.hpp"
#include "net/process/nic_server_cuda.hpp"

namespace oriel::net::test {

inline std::pair<OwnedFd, OwnedFd> nic_sockets() {
  int ends[2] = {-1, -1};
  REQUIRE(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) == 0);
  return {OwnedFd(ends[0]), OwnedFd(ends[1])};
}

inline GpuUuid uuid_of(int device) {
  CUuuid uuid{};
  REQUIRE(cuda().device_get_uuid(&uuid, device) == CUDA_SUCCESS);
  GpuUuid made{};
  std::memcpy(made.data(), uuid.bytes, made.size());
  return made;
}

/// Thread of this process that serves as the other end of a NicProcess.
struct NicServerThread {
  explicit NicServerThread(int device) {
    auto [own, other] = nic_sockets();
    thread = std::thread([this, socket = std::move(other)]() mutable {
      NicServer server(std::move(socket));
      ended = server.run();
    });
    NicProcess::Options options;
    options.gpu = uuid_of(device);
    process = NicProcess::join(std::move(own), options).value();
    ready = process->await_ready(Deadline::after(std::chrono::seconds(20)));
  }
  ~NicServerThread() {
    process->end();
    thread.join();
  }
  NicServerThread(const NicServerThread&) = delete;
  NicServerThread& operator=(const NicServerThread&) = delete;

  std::shared_ptr<NicProcess> process;
  Status ready;
  std::optional<Status> ended;  // valid once the thread has been joined
  std::thread thread;
};

/// Exportable memory of a GPU, which the GPUs in `others` can access too.
struct ShareableGpuMemory {
  ShareableGpuMemory(int device, std::size_t least, const std::vector<int>& others = {}) {
    CUmemAllocationProp wanted{};
    wanted.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    wanted.location = device_location(device);
    wanted.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    std::size_t unit = 0;
    REQUIRE(cuda().mem_get_allocation_granularity(&unit, &wanted,
                                                  CU_MEM_ALLOC_GRANULARITY_MINIMUM) == 0);
    bytes = (least + unit - 1) / unit * unit;
    REQUIRE(cuda().mem_create(&allocation, bytes, &wanted, 0) == 0);
    REQUIRE(cuda().mem_address_reserve(&address, bytes, 0, 0, 0) == 0);
    REQUIRE(cuda().mem_map(address, bytes, 0, allocation, 0) == 0);
    std::vector<CUmemAccessDesc> access{
        {device_location(device), CU_MEM_ACCESS_FLAGS_PROT_READWRITE}};
    for (const int other : others) {
      if (other == device) continue;
      access.push_back({device_location(other), CU_MEM_ACCESS_FLAGS_PROT_READWRITE});
    }
    REQUIRE(cuda().mem_set_access(address, bytes, access.data(), access.size()) == 0);
  }
  ~ShareableGpuMemory() {
    static_cast<void>(cuda().mem_unmap(address, bytes));
    static_cast<void>(cuda().mem_address_free(address, bytes));
    static_cast<void>(cuda().mem_release(allocation));
  }
  ShareableGpuMemory(const ShareableGpuMemory&) = delete;
  ShareableGpuMemory& operator=(const ShareableGpuMemory&) = delete;
  AllocationHandle handle() const {
    int fd = -1;
    REQUIRE(cuda().mem_export_to_shareable_handle(
                &fd, allocation, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0) == 0);
    return OwnedFd(fd);
  }
  std::byte* data() const { return reinterpret_cast<std::byte*>(address); }

  CUmemGenericAllocationHandle allocation = 0;
  CUdeviceptr address = 0;
  std::size_t bytes = 0;
};

}  // namespace oriel::net::test
