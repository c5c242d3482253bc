// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace oriel {

/// Returns "; did you mean NAME?" for the known name that is nearest to `name`. Returns nothing if
/// more than a third of `name` would have to change: such a guess would mislead.
std::string suggest_name(std::string_view name, std::span<const std::string_view> known);

}  // namespace oriel
