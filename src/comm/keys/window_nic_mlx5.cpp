// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "comm/keys/window_nic_mlx5.hpp"

#include <utility>

#include <fmt/format.h>

#include "base/try.hpp"

namespace oriel::comm {

Result<WindowNic::Keys> Mlx5WindowNic::register_memory(const net::MemoryRange& range) {
  ORIEL_TRY(net::Mlx5Region region,
            nic_.register_memory(memory_, range.memory, range.bytes, range.access));
  const Keys keys{region.lkey(), region.rkey()};
  if (keys.local == 0 || keys.remote == 0) {
    return Error(ErrorCode::system,
                 fmt::format("{} has given {} bytes of memory the key 0, which stands for none",
                             nic_.device().place().device, range.bytes));
  }
  const std::lock_guard lock(mutex_);
  regions_.insert_or_assign(keys.local, std::move(region));
  return keys;
}

void Mlx5WindowNic::deregister_memory(std::uint32_t lkey) noexcept {
  const std::lock_guard lock(mutex_);
  regions_.erase(lkey);
}

}  // namespace oriel::comm
