// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "comm/keys/window_nic.hpp"
#include "net/soft/nic_soft.hpp"

namespace oriel::comm {

/// WindowNic of a software NIC. The NIC outlives it.
class SoftWindowNic final : public WindowNic {
 public:
  explicit SoftWindowNic(net::NicSoft& nic) : nic_(nic) {}
  Result<Keys> register_memory(const net::MemoryRange& range) override;
  void deregister_memory(std::uint32_t lkey) noexcept override;
  Status map_peer_memory(std::uint64_t peer, std::uint32_t key,
                         const net::MemoryRange& range) override;
  void unmap_peer_memory(std::uint64_t peer, std::uint32_t key) noexcept override;
  void set_reached(std::uint64_t peer, std::uint32_t key) noexcept override;

 private:
  net::NicSoft& nic_;
};

}  // namespace oriel::comm
