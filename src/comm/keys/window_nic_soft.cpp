// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "comm/keys/window_nic_soft.hpp"

#include <exception>

#include "base/try.hpp"

namespace oriel::comm {

Result<WindowNic::Keys> SoftWindowNic::register_memory(const net::MemoryRange& range) {
  ORIEL_TRY(const std::uint32_t key, nic_.register_memory(range));
  return Keys{key, key};
}

void SoftWindowNic::deregister_memory(std::uint32_t lkey) noexcept {
  try {
    static_cast<void>(nic_.deregister_memory(lkey));
  } catch (const std::exception&) {
    nic_.fail();
  }
}

Status SoftWindowNic::map_peer_memory(std::uint64_t peer, std::uint32_t key,
                                      const net::MemoryRange& range) {
  return nic_.map_peer_memory(peer, key, range);
}

void SoftWindowNic::unmap_peer_memory(std::uint64_t peer, std::uint32_t key) noexcept {
  try {
    static_cast<void>(nic_.unmap_peer_memory(peer, key));
  } catch (const std::exception&) {
    nic_.fail();
  }
}

void SoftWindowNic::set_reached(std::uint64_t peer, std::uint32_t key) noexcept {
  try {
    nic_.set_reached(peer, key, true);
  } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): it sends more than needed
  }
}

}  // namespace oriel::comm
