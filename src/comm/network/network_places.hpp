// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "oriel/error.hpp"

#include "base/settings.hpp"
#include "boot/link/verdict.hpp"
#include "comm/network/network_message.hpp"

namespace oriel::comm {

/// Where the calling rank is; it is reached by one path.
NetworkPlace place_of_this_process();

/// What the ranks of several nodes have to ask for alike, by name.
std::vector<boot::AgreedField> network_fields(const Settings& settings);
/// Whether a network can be as they ask for.
Status check_network_settings(const Settings& settings);

}  // namespace oriel::comm
