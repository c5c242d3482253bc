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

/// Values of paths_asked(): the number of interfaces that ORIEL_PATHS names, or one of these
/// constants.
inline constexpr std::uint8_t kPathsUnset = 0;
inline constexpr std::uint8_t kPathsAutomatic = 255;
std::uint8_t paths_asked(const std::string& setting);
/// Returns the request in words: "names 2 interfaces", "is auto".
std::string describe_paths(std::uint8_t asked);

/// Returns the interfaces over which a rank is reached, the best first. An empty name stands for
/// the choice of ORIEL_SOCKET_IFNAME.
///
/// ORIEL_PATHS=auto selects at most two interfaces. They are fit for data (topo::InterfaceChoice),
/// except perhaps the interface of set-up.
/// The interface of set-up is used only if just one other is fit, and then last. Over it the ends
/// of a queue agree to leave a failed path. If no other interface is fit, it is the only path.
/// Local.
Result<std::vector<std::string>> choose_paths(const Settings& settings,
                                              const topo::InterfaceUser& user);

}  // namespace oriel::comm
