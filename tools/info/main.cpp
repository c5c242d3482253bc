// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
// oriel-info: what this build of Oriel is and how it is set.
#include <cstdio>
#include <exception>
#include <string>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "oriel/version.hpp"

#include "base/settings.hpp"

namespace oriel {
namespace {

constexpr int kExitBadEnvironment = 1;

struct Options {
  bool env = false;
  bool markdown = false;
  bool version = false;
};

void print_setting(const SettingDescription& setting) {
  fmt::print("{}={}\n", setting.name, setting.value);
  fmt::print("    {}\n", setting.doc);
  fmt::print("    allowed: {}\n", setting.allowed);
  if (setting.value != setting.fallback) fmt::print("    default: {}\n", setting.fallback);
  if (!setting.alias.empty()) fmt::print("    also read as: {}\n", setting.alias);
}

/// Lists what is in force here, or says which variable keeps it from being in force.
int print_environment() {
  const auto settings = process_settings();
  for (const std::string& warning : unknown_setting_warnings(environment_names())) {
    fmt::print(stderr, "oriel-info: {}\n", warning);
  }
  if (!settings.ok()) {
    fmt::print(stderr, "oriel-info: {}\n", settings.error().to_string());
    return kExitBadEnvironment;
  }
  for (const SettingDescription& setting : describe_settings(**settings)) print_setting(setting);
  return 0;
}

int print_version() {
  fmt::print("Oriel {}, NCCL interface {}\n", version(), kNcclVersion);
  fmt::print("backends built: host{}\n", ORIEL_HAVE_CUDA != 0 ? ", cuda" : "");
  return 0;
}

int run(int argc, char** argv) {
  Options options;
  CLI::App app("Says what this build of Oriel is and how it is set.");
  app.add_flag("--env", options.env, "list the settings and their values in this environment");
  app.add_flag("--markdown", options.markdown, "with --env: write docs/settings.md instead")
      ->needs("--env");
  app.add_flag("--version", options.version, "say which version this is");
  CLI11_PARSE(app, argc, argv);

  if (options.markdown) {
    fmt::print("{}", settings_markdown());
    return 0;
  }
  if (options.env) return print_environment();
  if (options.version) return print_version();
  fmt::print("{}", app.help());
  return 0;
}

}  // namespace
}  // namespace oriel

int main(int argc, char** argv) {
  try {
    return oriel::run(argc, argv);
  } catch (const std::exception& failure) {
    std::fprintf(stderr, "oriel-info: %s\n", failure.what());
    return 1;
  }
}
