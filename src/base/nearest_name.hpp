// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace oriel {

/// "; did you mean NAME?" with the known name that is nearest to `name`, or nothing where a third
/// of `name` or more would have to change: such a guess misleads more than it helps.
std::string suggest_name(std::string_view name, std::span<const std::string_view> known);

}  // namespace oriel
