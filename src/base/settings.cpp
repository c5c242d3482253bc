// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "base/settings.hpp"

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <mutex>

#include <fmt/format.h>
#include <unistd.h>

#include "base/fork.hpp"
#include "base/nearest_name.hpp"
#include "base/settings_table.hpp"
#include "base/try.hpp"

namespace oriel {
namespace {

using settings_table::Row;

std::optional<std::string> get_process_variable(const char* name) {
  // secure_getenv(): a variable may name a program, so set-user-ID programs ignore the environment.
  const char* value = ::secure_getenv(name);
  if (value == nullptr) return std::nullopt;
  return std::string(value);
}

Status read_row(const Row& row, const Settings::Lookup& lookup, Settings& settings) {
  for (const char* name : {row.name, row.alias}) {
    if (name == nullptr) continue;
    const auto value = lookup(name);
    if (!value || value->empty()) continue;
    if (settings_table::parse(row.kind, *value, settings)) return {};
    if (name == row.alias && settings_table::parse_leniently(row.kind, *value, settings)) return {};
    return Error(ErrorCode::invalid_usage,
                 fmt::format("environment variable {} has the value \"{}\"; allowed: {}", name,
                             *value, settings_table::allowed(row.kind)))
        .with_scope(Scope::process)
        .with_hint("set it to an allowed value, or unset it");
  }
  return {};
}

std::string unknown_name_warning(const std::string& name) {
  std::vector<std::string_view> known;
  for (const Row& row : settings_table::rows()) known.emplace_back(row.name);
  return fmt::format(
      "environment variable {} is not a setting of Oriel{}; hint: correct its name, or unset it",
      name, suggest_name(name, known));
}

/// Settings as read from the environment; returned pointers stay valid after a re-read.
class ProcessSettings {
 public:
  Result<const Settings*> get() {
    const std::lock_guard lock(mutex_);
    if (!current_) {
      auto parsed = Settings::from_environment(get_process_variable);
      history_.push_back(std::make_unique<Result<Settings>>(std::move(parsed)));
      current_ = history_.back().get();
    }
    if (!current_->ok()) return current_->error();
    return &current_->value();
  }
  void forget() {
    const std::lock_guard lock(mutex_);
    current_ = nullptr;
  }
  // Never destroyed: the log and other threads may still read settings while the process ends.
  static ProcessSettings& instance() {
    static auto* const settings = [] {
      auto* const made = new ProcessSettings;
      keep_free_in_children(ForkLock::settings, made->mutex_);
      return made;
    }();
    return *settings;
  }

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<Result<Settings>>> history_;
  const Result<Settings>* current_ = nullptr;
};

}  // namespace

Result<Settings> Settings::from_environment(const Lookup& lookup) {
  Settings settings;
  for (const Row& row : settings_table::rows()) ORIEL_CHECK(read_row(row, lookup, settings));
  return settings;
}

Result<const Settings*> process_settings() {
  return ProcessSettings::instance().get();
}

void reread_process_settings() {
  ProcessSettings::instance().forget();
}

std::vector<std::string> unknown_setting_warnings(std::span<const std::string> names) {
  std::vector<std::string> warnings;
  const auto rows = settings_table::rows();
  for (const std::string& name : names) {
    if (!name.starts_with("ORIEL_") || name.starts_with("ORIEL_TEST_")) continue;
    const bool known =
        std::any_of(rows.begin(), rows.end(), [&](const Row& row) { return name == row.name; });
    if (!known) warnings.push_back(unknown_name_warning(name));
  }
  return warnings;
}

std::vector<std::string> environment_names() {
  std::vector<std::string> names;
  if (environ == nullptr) return names;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    names.emplace_back(text.substr(0, text.find('=')));
  }
  return names;
}

std::vector<SettingDescription> describe_settings(const Settings& settings) {
  std::vector<SettingDescription> out;
  const Settings defaults;
  for (const Row& row : settings_table::rows()) {
    out.push_back(SettingDescription{
        .group = row.group,
        .name = row.name,
        .alias = row.alias != nullptr ? row.alias : "",
        .kind = settings_table::kind_name(row.kind),
        .fallback = settings_table::format(row.kind, defaults),
        .allowed = settings_table::allowed(row.kind),
        .doc = row.doc,
        .value = settings_table::format(row.kind, settings),
    });
  }
  return out;
}

std::string settings_markdown() {
  std::string text = R"(# Settings

After this page you can find a setting, what it allows, and its value in your process:

```console
$ ORIEL_TIMEOUT=5s build/bin/oriel-info --env | grep -A 3 ^ORIEL_TIMEOUT
ORIEL_TIMEOUT=5s
    How long one step of set-up may take: creating a communicator, registering a window.
    allowed: 1ms to 24h; units us, ms, s, min, h, seconds if none is given
    default: 30s
```

Oriel reads these environment variables once, when a process first uses it. An empty value
counts as not set, and Oriel's name wins over NCCL's. A value that is not allowed makes the
first call fail with an error that names the variable and what is allowed. A name that
starts with ORIEL_ and is not listed here gives a warning in the log. Whole numbers under
NCCL's names are taken as the nearest allowed number, or as 1 unless they are 0.

The check runs the command above, and compares this page with the table of the program.
Nothing on this page is measured.

This page is written by `oriel-info --env --markdown`; do not edit it.
)";
  std::string group;
  for (const SettingDescription& setting : describe_settings(Settings{})) {
    if (setting.group != group) text += fmt::format("\n## {}\n", setting.group);
    group = setting.group;
    text += fmt::format("\n### {}\n\n{}\n\n", setting.name, setting.doc);
    text += fmt::format("- Kind: {}\n- Allowed: {}\n", setting.kind, setting.allowed);
    text += setting.fallback.empty() ? "- Default: empty\n"
                                     : fmt::format("- Default: `{}`\n", setting.fallback);
    if (!setting.alias.empty()) text += fmt::format("- Also read as: `{}`\n", setting.alias);
  }
  return text;
}

}  // namespace oriel
