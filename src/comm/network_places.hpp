// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "oriel/error.hpp"

#include "base/settings.hpp"
#include "comm/network_message.hpp"

namespace oriel::comm {

/// Where the calling rank is, and what its settings ask for; it is reached by one path.
NetworkPlace place_of_this_process(const Settings& settings);

/// Whether ranks at these places can be joined. The same outcome on all ranks: a function of what
/// they have told each other.
Status check_places(const std::vector<NetworkPlace>& places);

}  // namespace oriel::comm
