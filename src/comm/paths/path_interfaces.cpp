// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "comm/paths/path_interfaces.hpp"

#include <algorithm>
#include <string_view>

#include <fmt/format.h>

#include "base/try.hpp"
#include "boot/auth/socket_address.hpp"

namespace oriel::comm {
namespace {

constexpr std::string_view kAutomatic = "auto";

std::vector<std::string> names_in(std::string_view text) {
  std::vector<std::string> names;
  while (!text.empty()) {
    const auto comma = std::min(text.find(','), text.size());
    if (comma > 0) names.emplace_back(text.substr(0, comma));
    text.remove_prefix(std::min(comma + 1, text.size()));
  }
  return names;
}

}  // namespace

std::uint8_t paths_asked(const std::string& setting) {
  if (setting == kAutomatic) return kPathsAutomatic;
  return static_cast<std::uint8_t>(
      std::min<std::size_t>(names_in(setting).size(), kPathsAutomatic - 1));
}

std::string describe_paths(std::uint8_t asked) {
  if (asked == kPathsUnset) return "names no interface";
  if (asked == kPathsAutomatic) return "is auto";
  return fmt::format("names {} interface{}", asked, asked == 1 ? "" : "s");
}

Result<std::vector<std::string>> choose_paths(const Settings& settings,
                                              const topo::InterfaceUser& user) {
  std::vector<std::string> unset = {""};
  if (settings.paths != kAutomatic) {
    std::vector<std::string> names = names_in(settings.paths);
    return names.empty() ? unset : names;
  }
  ORIEL_TRY(const std::vector<std::string> usable,
            boot::usable_interfaces({.ifname = settings.socket_ifname}));
  const std::string& of_setup = usable.front();
  ORIEL_TRY(topo::InterfaceChoice all, topo::own_interfaces(user, usable));
  std::vector<std::string> others = std::move(all.for_data);
  std::erase(others, of_setup);
  if (others.empty()) return unset;
  ORIEL_TRY(const topo::InterfaceChoice best, topo::own_interfaces(user, others));
  if (!best.backup.empty()) return std::vector{best.primary, best.backup};
  ORIEL_TRY(const topo::InterfaceChoice both, topo::own_interfaces(user, {best.primary, of_setup}));
  if (both.backup.empty()) return unset;
  return std::vector{best.primary, of_setup};
}

}  // namespace oriel::comm
