// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "window/memory/available_memory.hpp"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include <fmt/format.h>

#include "base/system_table.hpp"
#include "base/try.hpp"

namespace oriel::window {
namespace {

/// File names and keys by which a version of control groups reports memory.
struct GroupFiles {
  std::string_view line;  ///< start of the group's line in /proc/self/cgroup, after the number
  std::string_view root;
  std::string_view limit;
  std::string_view used;
  std::string_view cached[2];  ///< keys in memory.stat
};
constexpr GroupFiles kVersions[] = {
    {"::", "/sys/fs/cgroup", "memory.max", "memory.current", {"inactive_file", "active_file"}},
    {":memory:",
     "/sys/fs/cgroup/memory",
     "memory.limit_in_bytes",
     "memory.usage_in_bytes",
     {"total_inactive_file", "total_active_file"}},
};

/// Calls `use` with each line of `text` until it returns true.
template <typename Use>
void each_line(std::string_view text, Use use) {
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    if (use(text.substr(0, end))) return;
    text.remove_prefix(std::min(end + 1, text.size()));
  }
}

/// Returns the number after `key` at the start of a line.
std::optional<std::uint64_t> number_of(std::string_view text, std::string_view key) {
  std::optional<std::uint64_t> found;
  each_line(text, [&](std::string_view line) {
    if (line.substr(0, key.size()) != key) return false;
    line.remove_prefix(key.size());
    const std::size_t digits = line.find_first_not_of(" :\t");
    if (digits == 0 || digits == std::string_view::npos) return false;
    std::uint64_t value = 0;
    const auto [rest, error] =
        std::from_chars(line.data() + digits, line.data() + line.size(), value);
    if (error == std::errc()) found = value;
    return true;
  });
  return found;
}

Error no_memory(std::size_t bytes, const std::string& figures) {
  return system_error(fmt::format("allocating {} bytes: {}", bytes, figures), ENOMEM)
      .with_hint("allocate less, or give the process more memory");
}

Status check_machine(std::size_t bytes, const topo::FileTree& files) {
  const std::string info = files.read("/proc/meminfo").value_or("");
  const auto available = number_of(info, "MemAvailable");
  if (!available) return {};
  const std::uint64_t swap = number_of(info, "SwapFree").value_or(0);
  if (bytes / 1024 <= *available + swap) return {};
  return no_memory(bytes,
                   fmt::format("the machine has {} KiB of memory available and {} KiB of swap",
                               *available, swap));
}

Status check_group(std::size_t bytes, const topo::FileTree& files, const GroupFiles& names,
                   std::string_view group) {
  const std::string folder = fmt::format("{}{}/", names.root, group);
  const auto limit = files.read_number(folder + std::string(names.limit));
  const auto used = files.read_number(folder + std::string(names.used));
  if (!limit || !used || *limit < 0 || *used < 0) return {};  // "max" is no number
  std::uint64_t cached = 0;
  const std::string stat = files.read(folder + "memory.stat").value_or("");
  for (const std::string_view key : names.cached) cached += number_of(stat, key).value_or(0);
  const auto most = static_cast<std::uint64_t>(*limit);
  const std::uint64_t busy = std::max(static_cast<std::uint64_t>(*used), cached) - cached;
  if (busy <= most && bytes <= most - busy) return {};
  return no_memory(bytes, fmt::format("of the {} bytes that the control group {} may have, {} are "
                                      "in use",
                                      most, group.empty() ? "/" : group, busy));
}

}  // namespace

Status check_available_memory(std::size_t bytes, const topo::FileTree& files) {
  ORIEL_CHECK(check_machine(bytes, files));
  const std::string groups = files.read("/proc/self/cgroup").value_or("");
  for (const GroupFiles& names : kVersions) {
    std::string_view group;
    each_line(groups, [&](std::string_view line) {
      line.remove_prefix(std::min(line.find(':'), line.size()));
      if (line.substr(0, names.line.size()) != names.line) return false;
      group = line.substr(names.line.size());
      return true;
    });
    // Checks the parent groups too, since they also limit. In a container the path may lie outside
    // the visible tree; the visible root is then the process's own group.
    for (;;) {
      while (!group.empty() && group.back() == '/') group.remove_suffix(1);
      ORIEL_CHECK(check_group(bytes, files, names, group));
      if (group.empty()) break;
      group = group.substr(0, group.rfind('/'));
    }
  }
  return {};
}

}  // namespace oriel::window
