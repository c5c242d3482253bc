// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "common/command_line.hpp"

#include <cctype>
#include <cstdio>
#include <exception>
#include <new>
#include <utility>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "oriel/error.hpp"
#include "oriel/version.hpp"

#include "base/nearest_name.hpp"
#include "base/system_table.hpp"

namespace oriel::tools {
namespace {

bool looks_like_a_long_flag(const std::string& word) {
  return word.size() > 2 && word.compare(0, 2, "--") == 0;
}

bool looks_like_a_flag(const std::string& word) {
  return word.size() > 1 && word[0] == '-' &&
         std::isdigit(static_cast<unsigned char>(word[1])) == 0;
}

std::vector<std::string> names_of(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_snames()) names.push_back("-" + name);
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  }
  return names;
}

}  // namespace

CommandLine::CommandLine(std::string program, const std::string& purpose, std::string more_version)
    : program_(std::move(program)),
      more_version_(std::move(more_version)),
      app_(std::make_unique<CLI::App>(purpose, program_)) {
  app_->set_help_flag("-h,--help", "say what this program does and which options it has");
  app_->add_flag("--version", version_wanted_, "say which version this is");
}

CommandLine::~CommandLine() = default;

std::optional<int> CommandLine::parse(int argc, const char* const* argv) {
  if (const auto unknown = first_unknown_flag(argc, argv)) {
    const auto names = names_of(*app_);
    const std::vector<std::string_view> known(names.begin(), names.end());
    return misuse(fmt::format("unknown flag {}{}", *unknown, suggest_name(*unknown, known)));
  }
  // Makes flags without a value reject one: `--env=3` is a mistake.
  for (CLI::Option* option : app_->get_options()) {
    if (option->get_items_expected_max() == 0) option->disable_flag_override();
  }
  try {
    app_->parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    return put_out(program_, help());
  } catch (const CLI::ParseError& error) {
    // With --version, ignores errors such as a missing required option.
    if (!version_wanted_) return misuse(error.what());
  }
  if (!version_wanted_) return std::nullopt;
  return put_out(program_, fmt::format("{} (Oriel) {}\n{}", program_, version(), more_version_));
}

std::optional<std::string> CommandLine::first_unknown_flag(int argc,
                                                           const char* const* argv) const {
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "--") return std::nullopt;
    if (!looks_like_a_flag(word)) {
      if (app_->get_prefix_command()) return std::nullopt;  // the rest belongs to the program
      continue;
    }
    const bool is_long = word[1] == '-';
    const std::string name = is_long ? word.substr(0, word.find('=')) : word.substr(0, 2);
    const CLI::Option* const option = app_->get_option_no_throw(name);
    if (option == nullptr) return is_long ? name : word;
    // Skips the flag's values. No value begins with "--", so such a word is a flag.
    int values = word.size() == name.size() ? option->get_items_expected_min() : 0;
    for (; values > 0 && i + 1 < argc && !looks_like_a_long_flag(argv[i + 1]); --values) ++i;
  }
  return std::nullopt;
}

int CommandLine::misuse(const std::string& message) const {
  fmt::print(stderr, "{}: {}\n{} --help lists the options\n", program_, message, program_);
  return kExitMisuse;
}

std::string CommandLine::help() const {
  return app_->help();
}

int put_out(const std::string& program, const std::string& text) {
  const bool put = std::fwrite(text.data(), 1, text.size(), stdout) == text.size();
  if (put && std::fflush(stdout) == 0) return 0;
  fmt::print(stderr, "{}: {}\n", program, system_error("writing standard output").to_string());
  return kExitFailure;
}

int guarded_main(const std::string& program, const std::function<int()>& run) {
  const char* reason = "out of memory";
  try {
    return run();
  } catch (const std::bad_alloc&) {
    std::fprintf(stderr, "%s: %s\n", program.c_str(), reason);
  } catch (const std::exception& failure) {
    std::fprintf(stderr, "%s: %s\n", program.c_str(), failure.what());
  }
  return kExitFailure;
}

}  // namespace oriel::tools
