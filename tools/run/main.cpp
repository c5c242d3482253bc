// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <cstdio>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "common/command_line.hpp"
#include "common/process.hpp"
#include "run/launcher.hpp"
#include "run/preload.hpp"
#include "run/program_file.hpp"

namespace {

using namespace oriel;

int fail(const Error& error, int status = tools::kExitFailure) {
  fmt::print(stderr, "oriel-run: {}\n", error.to_string());
  return status;
}

// Prepares --preload, and warns if the program's calls cannot reach Oriel.
Result<run::Preload> prepare_preload(const std::string& program) {
  const auto warning = preload_warning(run::read_program_file(program));
  if (!warning.empty()) fmt::print(stderr, "oriel-run: {}\n", warning);
  return run::Preload::find(/*report=*/warning.empty());
}

struct Arguments {
  run::Options options;
  double grace_s = 5;
  double timeout_s = 0;
  bool preload = false;
  CLI::Option* ranks = nullptr;
};

constexpr const char* kHelp =
    "oriel-run -n N [options] program [arguments]\n"
    "oriel-run --preload [-n N] [options] program [arguments]\n\n"
    "Starts N ranks of a program on this host, with RANK, WORLD_SIZE, LOCAL_RANK,\n"
    "LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT set. When a rank fails it is named and the\n"
    "others are stopped; the exit status is that of the first rank that failed, 127 or 126 if the\n"
    "program cannot be started, 124 at --timeout, 128 and the signal's number if one ends it.\n\n"
    "With --preload the program, written for NCCL, runs on Oriel, and says where its\n"
    "ncclAllReduce is. Without -n the program starts once and makes its own ranks.";

void add_options(CLI::App& app, Arguments& to) {
  app.prefix_command();  // arguments after the program's name belong to the program
  to.ranks =
      app.add_option("-n,--ranks", to.options.ranks, "number of ranks")->check(CLI::Range(1, 4096));
  app.add_flag("--preload", to.preload, "have calls of NCCL reach Oriel, also in child processes");
  app.add_flag("--tag-output", to.options.tag_output, "put \"[rank] \" before each line of output")
      ->needs(to.ranks);
  app.add_option("--host", to.options.host, "MASTER_ADDR")->capture_default_str()->needs(to.ranks);
  app.add_option("--port", to.options.port, "MASTER_PORT; 0: one that is free")
      ->capture_default_str()
      ->needs(to.ranks);
  app.add_option("--grace", to.grace_s, "seconds between SIGTERM and SIGKILL")
      ->capture_default_str()
      ->needs(to.ranks);
  app.add_option("--timeout", to.timeout_s, "seconds until all ranks are stopped; 0: no limit")
      ->capture_default_str()
      ->needs(to.ranks);
}

int run_program(int argc, char** argv) {
  Arguments arguments;
  run::Options& options = arguments.options;
  tools::CommandLine line("oriel-run", kHelp);
  add_options(line.app(), arguments);
  if (const auto status = line.parse(argc, argv)) return *status;

  options.command = line.app().remaining();
  if (!options.command.empty() && options.command.front() == "--")
    options.command.erase(options.command.begin());
  if (options.command.empty()) return line.misuse("no program given");
  const bool once = arguments.ranks->empty();
  if (once && !arguments.preload) return line.misuse("-n is missing: the number of ranks");
  const auto grace = tools::seconds_to_nanoseconds(arguments.grace_s, "--grace");
  if (!grace) return line.misuse(grace.error().message());
  const auto timeout = tools::seconds_to_nanoseconds(arguments.timeout_s, "--timeout");
  if (!timeout) return line.misuse(timeout.error().message());
  options.grace = std::chrono::nanoseconds(*grace);
  if (*timeout > 0) options.timeout = std::chrono::nanoseconds(*timeout);

  if (arguments.preload) {
    auto prepared = prepare_preload(options.command.front());
    if (!prepared) return fail(prepared.error());
    if (once) {
      prepared->apply(/*first=*/true);
      const Error refused = run::become_program(std::move(options.command));
      return fail(refused, run::start_failure_status(refused.native().value));
    }
    options.preload = std::move(*prepared);
  }
  run::Launcher launcher(std::move(options));
  const auto result = launcher.run();
  if (result) return *result;
  return fail(result.error(), launcher.start_failure().value_or(tools::kExitFailure));
}

}  // namespace

int main(int argc, char** argv) {
  return tools::guarded_main("oriel-run", [&] { return run_program(argc, argv); });
}
