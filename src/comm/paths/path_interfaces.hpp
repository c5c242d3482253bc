// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "oriel/error.hpp"

#include "base/settings.hpp"
#include "topo/choice/interface_choice.hpp"

namespace oriel::comm {

/// What ORIEL_PATHS asks for: so many interfaces by name, or one of these.
inline constexpr std::uint8_t kPathsUnset = 0;
inline constexpr std::uint8_t kPathsAutomatic = 255;
std::uint8_t paths_asked(const std::string& setting);
/// "names 2 interfaces", "is auto".
std::string describe_paths(std::uint8_t asked);

/// The interfaces over which a rank is reached, the best first. One that is empty stands for what
/// ORIEL_SOCKET_IFNAME asks for.
///
/// Of those that it finds itself, which are all fit for data (topo::InterfaceChoice), the one that
/// set-up uses is the last: by that the ends of a queue agree to leave a path that has failed.
/// Where no other is fit that one is the only path. Local; reads small files once in a process.
Result<std::vector<std::string>> choose_paths(const Settings& settings,
                                              const topo::InterfaceUser& user);

}  // namespace oriel::comm
