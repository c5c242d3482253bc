// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
// oriel-info: shows this build of Oriel and its settings.
#include <algorithm>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "oriel/version.hpp"

#include "base/settings.hpp"
#include "common/command_line.hpp"
#include "info/flight_merge.hpp"

namespace oriel {
namespace {

struct Options {
  bool env = false;
  bool markdown = false;
  std::string merge;
};

void print_setting(const SettingDescription& setting) {
  fmt::print("{}={}\n", setting.name, setting.value);
  fmt::print("    {}\n", setting.doc);
  fmt::print("    allowed: {}\n", setting.allowed);
  if (setting.value != setting.fallback) fmt::print("    default: {}\n", setting.fallback);
  if (!setting.alias.empty()) fmt::print("    also read as: {}\n", setting.alias);
}

/// Lists the settings in force here. If a variable is invalid, prints the error instead.
int print_environment() {
  const auto settings = process_settings();
  for (const std::string& warning : unknown_setting_warnings(environment_names())) {
    fmt::print(stderr, "oriel-info: {}\n", warning);
  }
  if (!settings.ok()) {
    fmt::print(stderr, "oriel-info: {}\n", settings.error().to_string());
    return tools::kExitFailure;
  }
  std::string group;
  for (const SettingDescription& setting : describe_settings(**settings)) {
    if (setting.group != group) fmt::print("{}# {}\n", group.empty() ? "" : "\n", setting.group);
    group = setting.group;
    print_setting(setting);
  }
  return 0;
}

/// Compares the calls that ranks have written to a folder. If a file cannot be read, names it and
/// compares the others.
int merge_flights(const std::string& folder) {
  const auto complain = [](const Error& error) {
    fmt::print(stderr, "oriel-info: {}\n", error.to_string());
    return tools::kExitFailure;
  };
  const auto paths = tools::find_flight_files(folder);
  if (!paths.ok()) return complain(paths.error());
  int status = 0;
  std::vector<tools::FlightFile> files;
  for (const std::string& path : paths.value()) {
    auto file = tools::read_flight_file(path);
    if (file.ok()) {
      files.push_back(std::move(file).value());
    } else {
      status = complain(file.error());
    }
  }
  const auto text = tools::compare_flights(files);
  if (!text.ok()) return complain(text.error());
  return std::max(status, tools::put_out("oriel-info", text.value()));
}

std::string more_version() {
  return fmt::format("NCCL interface {}\nbackends built: host{}\n", kNcclVersion,
                     ORIEL_HAVE_CUDA != 0 ? ", cuda" : "");
}

int run(int argc, char** argv) {
  Options options;
  tools::CommandLine line("oriel-info", "Says what this build of Oriel is and how it is set.",
                          more_version());
  line.app().add_flag("--env", options.env,
                      "list the settings, by what they are about, with their values here");
  line.app()
      .add_flag("--markdown", options.markdown, "with --env: write docs/settings.md instead")
      ->needs("--env");
  line.app()
      .add_option("--merge", options.merge,
                  "name the first call that differs among ranks which wrote to ORIEL_DUMP_DIR")
      ->type_name("DIR")
      ->excludes("--env");
  if (const auto status = line.parse(argc, argv)) return *status;
  if (options.markdown) return tools::put_out("oriel-info", settings_markdown());
  if (options.env) return print_environment();
  if (!options.merge.empty()) return merge_flights(options.merge);
  return tools::put_out("oriel-info", line.help());
}

}  // namespace
}  // namespace oriel

int main(int argc, char** argv) {
  return oriel::tools::guarded_main("oriel-info", [&] { return oriel::run(argc, argv); });
}
