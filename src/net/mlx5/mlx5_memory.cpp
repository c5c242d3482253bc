// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "net/mlx5/mlx5_memory.hpp"

#include <cstring>

#include <fmt/format.h>

namespace oriel::net {
namespace {

class HostPages final : public QueuePages {
 public:
  explicit HostPages(void* address, std::size_t bytes) {
    user_ = own_ = static_cast<std::byte*>(address);
    bytes_ = bytes;
  }
  HostPages(const HostPages&) = delete;
  HostPages& operator=(const HostPages&) = delete;
  ~HostPages() override { static_cast<void>(sys().munmap(own_, bytes_)); }
  Status write(std::size_t offset, ByteView from) override {
    std::memcpy(own_ + offset, from.data(), from.size());
    return {};
  }
};

class HostMapping final : public Mlx5Mapping {
 public:
  explicit HostMapping(void* address) { user_ = static_cast<std::uint64_t*>(address); }
};

}  // namespace

Result<std::unique_ptr<QueuePages>> Mlx5HostMemory::allocate(std::size_t bytes) {
  void* address =
      sys().mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (address == MAP_FAILED) {
    return system_error(fmt::format("mapping {} bytes for a queue of an adapter", bytes));
  }
  // Keeps the pages from a child of fork(): copies on write would separate them from the adapter.
  std::unique_ptr<QueuePages> pages = std::make_unique<HostPages>(address, bytes);
  if (sys().madvise(address, bytes, MADV_DONTFORK) != 0) {
    return system_error("keeping a queue's memory from child processes");
  }
  return pages;
}

Result<std::unique_ptr<QueuePages>> Mlx5HostMemory::allocate_on_host(std::size_t bytes) {
  return allocate(bytes);
}

Result<Mlx5Export> Mlx5HostMemory::export_range(const void* /*address*/, std::size_t /*bytes*/) {
  return Mlx5Export();
}

Result<std::unique_ptr<Mlx5Mapping>> Mlx5HostMemory::map_register(void* address,
                                                                  std::size_t /*bytes*/,
                                                                  bool write_combining) {
  // Plain stores suffice on x86 without write-combining only. A combined store may stay in the CPU.
  // Other CPUs order stores to registers after stores to memory only by special instructions.
#if defined(__x86_64__)
  const bool plain_stores_do = !write_combining;
#else
  const bool plain_stores_do = false;
  static_cast<void>(write_combining);
#endif
  if (!plain_stores_do) {
    return Error(ErrorCode::system, "plain stores do not reach the doorbell register in order");
  }
  std::unique_ptr<Mlx5Mapping> mapping = std::make_unique<HostMapping>(address);
  return mapping;
}

}  // namespace oriel::net
