// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "oriel/error.hpp"

#include "base/fd.hpp"
#include "net/queue/queue_pages.hpp"

/// Memory of those who fill a queue of an mlx5 adapter: threads of this process, or of one GPU.
namespace oriel::net {

/// By what an adapter finds memory of a GPU: a dma-buf, and where in it. Without a descriptor it
/// finds it by its address.
struct Mlx5Export {
  OwnedFd descriptor;
  std::uint64_t offset = 0;
};

/// The users' way to a doorbell register, until it is destroyed.
class Mlx5Mapping {
 public:
  virtual ~Mlx5Mapping() = default;
  std::uint64_t* user() const { return user_; }

 protected:
  std::uint64_t* user_ = nullptr;
};

/// Where memory comes from. Outlives what it gave out. Thread-safe.
class Mlx5Memory : public QueuePagesSource {
 public:
  /// What memory that an adapter uses has to be aligned to; a power of two, at least 4096.
  virtual std::size_t page_bytes() const = 0;
  /// How an adapter finds [address, address + bytes) of near memory, of one allocation.
  virtual Result<Mlx5Export> export_range(const void* address, std::size_t bytes) = 0;
  /// Lets the users store to `bytes` of a register that is mapped into this process.
  /// `write_combining`: so is the mapping.
  virtual Result<std::unique_ptr<Mlx5Mapping>> map_register(void* address, std::size_t bytes,
                                                            bool write_combining) = 0;
  /// Whether what a read has brought is visible to the users only after a dump entry.
  virtual Result<bool> gets_need_dump() = 0;
};

/// For threads of this process.
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
