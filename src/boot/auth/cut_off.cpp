// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "boot/auth/cut_off.hpp"

#include <algorithm>

namespace oriel::boot {

CutOff find_cut_off(std::span<const HostState> others, std::size_t of_peer, bool is_late) {
  if (others.size() < 2 || others[of_peer] == HostState::answers) return CutOff::peer;
  const auto count = [&](HostState state) {
    return static_cast<std::size_t>(std::count(others.begin(), others.end(), state));
  };
  const std::size_t hosts = others.size() + 1;
  const std::size_t unknown = count(HostState::slow) + (is_late ? 0 : count(HostState::unknown));
  const std::size_t reached = count(HostState::answers) + 1;
  const std::size_t lost = hosts - reached - unknown;
  if (2 * reached > hosts) return CutOff::peer;
  if (2 * lost > hosts) return CutOff::self;
  return unknown == 0 ? CutOff::peer : CutOff::undecided;
}

}  // namespace oriel::boot
