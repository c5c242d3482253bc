// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "run/preload.hpp"

#include <cstdlib>
#include <filesystem>

#include <fmt/format.h>
#include <unistd.h>

#include "base/system_table.hpp"

namespace oriel::run {
namespace {

namespace fs = std::filesystem;

constexpr const char* kForwarder = "libnccl.so.2";
constexpr const char* kAuditModule = "liboriel-audit.so";

// Returns the folder of the libraries relative to this program, as installed or as built.
fs::path library_folder() {
  std::error_code ignored;
  const fs::path program = fs::read_symlink("/proc/self/exe", ignored).parent_path();
  for (const char* folder : {ORIEL_LIBRARY_FOLDER, "../lib"}) {
    fs::path candidate = fs::weakly_canonical(program / folder, ignored);
    if (fs::exists(candidate / kForwarder, ignored)) return candidate;
  }
  return program / ORIEL_LIBRARY_FOLDER;
}

std::string after_present(const char* variable, const std::string& path) {
  const char* present = std::getenv(variable);
  return present != nullptr && *present != '\0' ? fmt::format("{}:{}", present, path) : path;
}

}  // namespace

Result<Preload> Preload::find(bool report) {
  const fs::path folder = library_folder();
  Preload preload;
  preload.report_ = report;
  for (const auto& [variable, file] :
       {std::pair("LD_PRELOAD", kForwarder), std::pair("LD_AUDIT", kAuditModule)}) {
    const std::string path = folder / file;
    if (::access(path.c_str(), R_OK) != 0)
      return system_error(fmt::format("--preload needs {}", path));
    if (path.find_first_of(": \t\n") != std::string::npos)
      return Error(ErrorCode::invalid_argument,
                   fmt::format("the path '{}' has a space or a colon, which separate paths in {}",
                               path, variable))
          .with_hint("install Oriel in another folder");
    preload.environment_.emplace_back(variable, after_present(variable, path));
  }
  return preload;
}

void Preload::apply(bool first) const {
  for (const auto& [name, value] : environment_) ::setenv(name.c_str(), value.c_str(), 1);
  // exec() keeps the process id, and no child has it.
  if (first && report_) ::setenv("_ORIEL_RUN_REPORT", std::to_string(::getpid()).c_str(), 1);
}

Error become_program(std::vector<std::string> command) {
  std::vector<char*> arguments;
  arguments.reserve(command.size() + 1);
  for (std::string& argument : command) arguments.push_back(argument.data());
  arguments.push_back(nullptr);
  ::execvp(arguments[0], arguments.data());
  return system_error(fmt::format("running '{}'", command.front()));
}

}  // namespace oriel::run
