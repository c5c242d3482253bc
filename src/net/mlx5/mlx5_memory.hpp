// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "oriel/error.hpp"

#include "base/fd.hpp"
#include "net/queue/queue_pages.hpp"

/// Memory for the users of an mlx5 adapter's queue: threads of this process, or of one GPU.
namespace oriel::net {

/// Handle by which an adapter finds memory of a GPU: a dma-buf and the offset in it. Without a
/// descriptor the adapter finds the memory by its address.
struct Mlx5Export {
  OwnedFd descriptor;
  std::uint64_t offset = 0;
};

/// Mapping through which the users reach a doorbell register. Unmapped when destroyed.
class Mlx5Mapping {
 public:
  virtual ~Mlx5Mapping() = default;
  std::uint64_t* user() const { return user_; }

 protected:
  std::uint64_t* user_ = nullptr;
};

/// Source of memory. Outlives the memory that it has allocated. Thread-safe.
class Mlx5Memory : public QueuePagesSource {
 public:
  /// Returns the alignment of memory that an adapter uses: a power of two, at least 4096.
  virtual std::size_t page_bytes() const = 0;
  /// Returns how an adapter finds [address, address + bytes) of near memory, which lies in one
  /// allocation.
  virtual Result<Mlx5Export> export_range(const void* address, std::size_t bytes) = 0;
  /// Lets the users store to `bytes` bytes of a register that is mapped into this process.
  /// `write_combining`: the process's mapping is write-combining.
  virtual Result<std::unique_ptr<Mlx5Mapping>> map_register(void* address, std::size_t bytes,
                                                            bool write_combining) = 0;
  /// Returns whether users see the data of a read only after a dump WQE.
  virtual Result<bool> gets_need_dump() = 0;
};

/// Memory for threads of this process.
class Mlx5HostMemory final : public Mlx5Memory {
 public:
  std::size_t page_bytes() const override { return 4096; }
  Result<std::unique_ptr<QueuePages>> allocate(std::size_t bytes) override;
  Result<std::unique_ptr<QueuePages>> allocate_on_host(std::size_t bytes) override;
  Result<Mlx5Export> export_range(const void* address, std::size_t bytes) override;
  Result<std::unique_ptr<Mlx5Mapping>> map_register(void* address, std::size_t bytes,
                                                    bool write_combining) override;
  Result<bool> gets_need_dump() override { return false; }
};

}  // namespace oriel::net
