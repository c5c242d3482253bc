// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <cstdio>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "common/process.hpp"
#include "run/launcher.hpp"

namespace {

constexpr int kUsage = 2;

int fail(const oriel::Error& error, int status) {
  fmt::print(stderr, "oriel-run: {}\n", error.to_string());
  return status;
}

}  // namespace

int main(int argc, char** argv) {
  oriel::run::Options options;
  double grace_s = 5;
  double timeout_s = 0;
  CLI::App app{
      "oriel-run -n N [options] program [arguments]\n\n"
      "Starts N ranks of a program on this host, with RANK, WORLD_SIZE, LOCAL_RANK,\n"
      "LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT set. When a rank fails it is named and the\n"
      "others are stopped; the exit status is that of the first rank that failed."};
  app.prefix_command();  // what follows the program's name belongs to the program
  app.add_option("-n,--ranks", options.ranks, "number of ranks")
      ->required()
      ->check(CLI::Range(1, 4096));
  app.add_flag("--tag-output", options.tag_output, "put \"[rank] \" before each line of output");
  app.add_option("--host", options.host, "MASTER_ADDR")->capture_default_str();
  app.add_option("--port", options.port, "MASTER_PORT; 0: one that is free")->capture_default_str();
  app.add_option("--grace", grace_s, "seconds between SIGTERM and SIGKILL")->capture_default_str();
  app.add_option("--timeout", timeout_s, "seconds until all ranks are stopped; 0: no limit")
      ->capture_default_str();
  CLI11_PARSE(app, argc, argv);

  options.command = app.remaining();
  if (!options.command.empty() && options.command.front() == "--")
    options.command.erase(options.command.begin());
  if (options.command.empty()) {
    fmt::print(stderr, "oriel-run: no program given\n{}", app.help());
    return kUsage;
  }
  const auto grace = oriel::tools::seconds_to_nanoseconds(grace_s, "--grace");
  if (!grace) return fail(grace.error(), kUsage);
  const auto timeout = oriel::tools::seconds_to_nanoseconds(timeout_s, "--timeout");
  if (!timeout) return fail(timeout.error(), kUsage);
  options.grace = std::chrono::nanoseconds(*grace);
  if (*timeout > 0) options.timeout = std::chrono::nanoseconds(*timeout);

  oriel::run::Launcher launcher(std::move(options));
  const auto verdict = launcher.run();
  return verdict ? *verdict : fail(verdict.error(), 126);
}
