// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <mutex>

#include "comm/keys/window_nic.hpp"
#include "net/mlx5/mlx5_memory.hpp"
#include "net/mlx5/nic_mlx5.hpp"

namespace oriel::comm {

/// WindowNic of an mlx5 adapter. Adapter and memory outlive it.
class Mlx5WindowNic final : public WindowNic {
 public:
  Mlx5WindowNic(const net::NicMlx5& nic, net::Mlx5Memory& memory) : nic_(nic), memory_(memory) {}
  Result<Keys> register_memory(const net::MemoryRange& range) override;
  void deregister_memory(std::uint32_t lkey) noexcept override;

 private:
  const net::NicMlx5& nic_;
  net::Mlx5Memory& memory_;
  std::mutex mutex_;
  std::map<std::uint32_t, net::Mlx5Region> regions_;  // by lkey
};

}  // namespace oriel::comm
