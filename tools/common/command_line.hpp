// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

namespace CLI {
class App;
}

namespace oriel::tools {

/// Exit statuses of all tools. oriel-run ends with the status of the program that it ran.
constexpr int kExitFailure = 1;
constexpr int kExitMisuse = 2;

/// The command line of a tool: CLI11's, plus --version, and complaints that begin with the
/// program's name. An unknown flag is complained about before anything else, with the nearest
/// known one.
class CommandLine {
 public:
  /// `program` is the tool's name; `more_version` follows in --version's output.
  CommandLine(std::string program, const std::string& purpose, std::string more_version = {});
  ~CommandLine();
  CommandLine(const CommandLine&) = delete;
  CommandLine& operator=(const CommandLine&) = delete;

  /// For declaring options.
  CLI::App& app() { return *app_; }

  /// Reads the arguments. The status to exit with if there is nothing more to do, because help or
  /// the version was printed or the arguments are wrong.
  std::optional<int> parse(int argc, const char* const* argv);

  /// Complains about the arguments; kExitMisuse.
  int misuse(const std::string& message) const;

  /// The text of --help.
  std::string help() const;

 private:
  std::optional<std::string> first_unknown_flag(int argc, const char* const* argv) const;

  std::string program_;
  std::string more_version_;
  bool version_wanted_ = false;
  std::unique_ptr<CLI::App> app_;
};

/// Writes `text` to standard output. The status to exit with: 0, or kExitFailure after saying on
/// standard error that it could not be written.
int put_out(const std::string& program, const std::string& text);

/// Calls `run` and turns an exception into a message and kExitFailure.
int guarded_main(const std::string& program, const std::function<int()>& run);

}  // namespace oriel::tools
