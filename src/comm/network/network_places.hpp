// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "oriel/error.hpp"

#include "base/settings.hpp"
#include "boot/link/vote_record.hpp"
#include "comm/network/network_message.hpp"

namespace oriel::comm {

/// Returns the location of the calling process, with one path.
NetworkPlace place_of_this_process();

/// Returns the network settings that must be the same on all ranks.
std::vector<boot::AgreedField> network_fields(const Settings& settings);
/// Checks that the settings can be combined.
Status check_network_settings(const Settings& settings);

}  // namespace oriel::comm
