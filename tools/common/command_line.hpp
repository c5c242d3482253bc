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

/// Exit statuses of all tools. After running a program, oriel-run exits with the program's status.
constexpr int kExitFailure = 1;
constexpr int kExitMisuse = 2;

/// The command line of a tool: CLI11's, with --version and error messages that begin with the
/// program's name. Reports an unknown flag before any other error, and suggests a flag with a
/// similar name.
class CommandLine {
 public:
  /// `program` is the tool's name; `more_version` follows in --version's output.
  CommandLine(std::string program, const std::string& purpose, std::string more_version = {});
  ~CommandLine();
  CommandLine(const CommandLine&) = delete;
  CommandLine& operator=(const CommandLine&) = delete;

  /// Returns CLI11's app, for declaring options.
  CLI::App& app() { return *app_; }

  /// Parses the arguments. Returns the exit status if help or the version was printed or the
  /// arguments are wrong; nothing if the tool shall go on.
  std::optional<int> parse(int argc, const char* const* argv);

  /// Prints an error about the arguments; returns kExitMisuse.
  int misuse(const std::string& message) const;

  /// Returns the text of --help.
  std::string help() const;

 private:
  std::optional<std::string> first_unknown_flag(int argc, const char* const* argv) const;

  std::string program_;
  std::string more_version_;
  bool version_wanted_ = false;
  std::unique_ptr<CLI::App> app_;
};

/// Writes `text` to standard output; returns exit status 0. If writing fails, prints an error and
/// returns kExitFailure.
int put_out(const std::string& program, const std::string& text);

/// Calls `run` and returns its status; turns an exception into a message and kExitFailure.
int guarded_main(const std::string& program, const std::function<int()>& run);

}  // namespace oriel::tools
