// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "net/mlx5/mlx5_memory_cuda.hpp"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "base/alignment.hpp"
#include "base/cuda_table.hpp"
#include "base/try.hpp"
#include "net/mlx5/queue_pages_cuda.hpp"

namespace oriel::net {
namespace {

constexpr std::size_t kHostPage = 4096;

/// Mapping of a register into the GPU. Unmapped when destroyed.
class RegisterMapping final : public Mlx5Mapping {
 public:
  RegisterMapping(CUcontext context, void* own) : context_(context), own_(own) {}
  RegisterMapping(const RegisterMapping&) = delete;
  RegisterMapping& operator=(const RegisterMapping&) = delete;
  ~RegisterMapping() override {
    const auto scope = CudaScope::enter(context_);
    static_cast<void>(cuda().mem_host_unregister(own_));
  }
  void set_user(CUdeviceptr user) { user_ = reinterpret_cast<std::uint64_t*>(user); }

 private:
  CUcontext context_;
  void* own_;
};

Result<int> attribute(CUdevice device, CUdevice_attribute which) {
  int value = 0;
  ORIEL_CHECK(
      cuda_status(fmt::format("asking GPU {} for attribute {}", device, static_cast<int>(which)),
                  cuda().device_get_attribute(&value, which, device)));
  return value;
}

}  // namespace

Result<std::unique_ptr<Mlx5CudaMemory>> Mlx5CudaMemory::create(CUdevice device) {
  ORIEL_TRY(PrimaryContext context, PrimaryContext::retain(device));
  std::unique_ptr<Mlx5CudaMemory> made(new Mlx5CudaMemory(std::move(context)));
  ORIEL_CHECK(made->query_device());
  return made;
}

Mlx5CudaMemory::~Mlx5CudaMemory() = default;

Status Mlx5CudaMemory::query_device() {
  const CUdevice device = context_.device();
  ORIEL_TRY(const int reached, attribute(device, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED));
  if (reached == 0) {
    return Error(ErrorCode::cuda,
                 fmt::format("adapters cannot reach the memory of GPU {} (GPUDirect RDMA)", device))
        .with_hint("use a data-centre or professional GPU");
  }
  ORIEL_TRY(const int dmabuf, attribute(device, CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED));
  has_dmabuf_ = dmabuf != 0;
  ORIEL_TRY(const int ordering,
            attribute(device, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING));
  gets_need_dump_ = ordering < CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER;
  return {};
}

Result<std::unique_ptr<QueuePages>> Mlx5CudaMemory::allocate(std::size_t bytes) {
  ORIEL_TRY(auto pages, allocate_gpu_pages(context_.get(), page_bytes(), bytes));
  ORIEL_TRY(const CudaScope scope, CudaScope::enter(context_.get()));
  // SYNC_MEMOPS: a copy to memory that an adapter also uses has ended when its call returns.
  const unsigned on = 1;
  ORIEL_CHECK(
      cuda_status("preparing a queue's memory for an adapter",
                  cuda().pointer_set_attribute(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS,
                                               reinterpret_cast<CUdeviceptr>(pages->own()))));
  return pages;
}

Result<std::unique_ptr<QueuePages>> Mlx5CudaMemory::allocate_on_host(std::size_t bytes) {
  return allocate_pinned_pages(context_.get(), bytes);
}

Result<Mlx5Export> Mlx5CudaMemory::export_range(const void* address, std::size_t bytes) {
  Mlx5Export found;
  if (!has_dmabuf_) return found;
  ORIEL_TRY(const CudaScope scope, CudaScope::enter(context_.get()));
  const auto first = reinterpret_cast<CUdeviceptr>(address);
  const CUdeviceptr begin = round_down(first, kHostPage);
  const CUdeviceptr end = round_up(first + bytes, kHostPage);
  int descriptor = -1;
  const CUresult status = cuda().mem_get_handle_for_address_range(
      &descriptor, begin, end - begin, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0);
  // Not every kind of memory can be exported; peer memory may still work.
  if (status == CUDA_ERROR_NOT_SUPPORTED) return found;
  ORIEL_CHECK(cuda_status(
      fmt::format("exporting {} bytes at {} of a GPU as a dma-buf", bytes, address), status));
  found.descriptor = OwnedFd(descriptor);
  found.offset = first - begin;
  return found;
}

Result<std::unique_ptr<Mlx5Mapping>> Mlx5CudaMemory::map_register(void* address, std::size_t bytes,
                                                                  bool /*write_combining*/) {
  ORIEL_TRY(const CudaScope scope, CudaScope::enter(context_.get()));
  const CUresult status = cuda().mem_host_register(
      address, bytes,
      CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP | CU_MEMHOSTREGISTER_IOMEMORY);
  if (status != CUDA_SUCCESS) {
    return cuda_error("mapping an adapter's doorbell into a GPU", status)
        .with_hint(
            "load NVIDIA's kernel module with "
            "NVreg_RegistryDwords=\"PeerMappingOverride=1\"");
  }
  auto mapping = std::make_unique<RegisterMapping>(context_.get(), address);
  CUdeviceptr user = 0;
  ORIEL_CHECK(cuda_status("finding an adapter's doorbell in a GPU's addresses",
                          cuda().mem_host_get_device_pointer(&user, address, 0)));
  mapping->set_user(user);
  return std::unique_ptr<Mlx5Mapping>(std::move(mapping));
}

}  // namespace oriel::net
