// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
// oriel-topo: shows the topology of a machine and Oriel's decisions about it.
#include <algorithm>
#include <cstdio>
#include <optional>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/settings.hpp"
#include "base/system_table.hpp"
#include "base/try.hpp"
#include "common/command_line.hpp"
#include "topo/machine/machine_file.hpp"
#include "topo/machine/process_machine.hpp"
#include "topo/model/printable.hpp"
#include "topo/xml/nccl_xml.hpp"
#include "topology/summary.hpp"

namespace oriel::tools {
namespace {

struct Options {
  std::string file;
  bool json = false;
  bool svg = false;
  bool xml = false;
  std::vector<int> explain;
  std::optional<std::size_t> width;
};

/// Returns the settings of this process; null if a file describes the machine.
Result<const Settings*> settings_for(const Options& options) {
  if (!options.file.empty()) return static_cast<const Settings*>(nullptr);
  return process_settings();
}

/// Returns the columns of the terminal; 0 (no limit) if standard output is no terminal.
std::size_t width_of_output() {
  winsize size{};
  return ::isatty(STDOUT_FILENO) != 0 && ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0
             ? size.ws_col
             : 0;
}

/// Makes each line printable; lines may quote contents of a file.
std::string shown(const std::string& lines) {
  std::string text;
  for (std::size_t begin = 0; begin <= lines.size();) {
    const std::size_t end = std::min(lines.find('\n', begin), lines.size());
    if (begin > 0) text += '\n';
    text += topo::printable(std::string_view(lines).substr(begin, end - begin));
    begin = end + 1;
  }
  return text;
}

/// Returns the text to show. If the settings name a dump file, writes it and stores the result in
/// `dumped`.
Result<std::string> text_for(const Options& options, Status& dumped) {
  ORIEL_TRY(const Settings* settings, settings_for(options));
  topo::Machine machine;
  if (settings != nullptr) {  // uses the machine that the library would find here
    ORIEL_TRY(const auto whole, topo::process_machine().whole(*settings));
    machine = *whole;
  } else {
    ORIEL_TRY(machine, topo::read_machine_file(options.file));
  }
  if (settings != nullptr && !settings->topo_dump_file.empty()) {
    dumped = topo::dump_machine(machine, settings->topo_dump_file);
  }
  if (options.xml) return topo::write_nccl_xml(machine);
  if (!options.explain.empty()) {
    const auto count = static_cast<int>(machine.gpus.size());
    for (const int gpu : options.explain) {
      if (gpu >= 0 && gpu < count) continue;
      return Error(ErrorCode::invalid_argument,
                   fmt::format("--explain {}: there {} {} GPU{}", gpu, count == 1 ? "is" : "are",
                               count, count == 1 ? "" : "s"));
    }
    return shown(topo::explain_path(machine, options.explain[0], options.explain[1]) + "\n");
  }
  const Summary summary = summarise(std::move(machine), settings);
  if (options.json) return json_of(summary);
  if (options.svg) return svg_of(summary);
  return table_of(summary, options.width ? *options.width : width_of_output());
}

int complain(const Error& error) {
  fmt::print(stderr, "oriel-topo: {}\n", shown(error.to_string()));
  return kExitFailure;
}

int run(int argc, char** argv) {
  Options options;
  CommandLine line("oriel-topo",
                   "Shows the topology of this machine: who maps whose memory, and which NIC is "
                   "near which GPU.");
  CLI::App& app = line.app();
  const auto names_something = [](const std::string& path) {
    return path.empty() ? std::string("it names no file") : std::string();
  };
  app.add_option("--file", options.file,
                 "describe the machine of this file, NCCL's XML or hwloc's, instead of this one "
                 "or that of ORIEL_TOPO_FILE")
      ->check(names_something);
  auto* const json = app.add_flag("--json", options.json, "everything, as JSON");
  auto* const svg = app.add_flag("--svg", options.svg, "a picture, as SVG");
  auto* const xml = app.add_flag("--nccl-xml", options.xml, "NCCL's description of the machine");
  app.add_option("--explain", options.explain,
                 "say why two GPUs, given by their numbers, use their path")
      ->expected(2)
      ->check([](const std::string& number) {  // CLI11 reads an empty text as 0
        return number.empty() ? std::string("it names no GPU") : std::string();
      })
      ->excludes(json)
      ->excludes(svg)
      ->excludes(xml);
  app.add_option("--width", options.width,
                 "columns of the table; 0: no limit. Else the terminal's, if there is one")
      ->check(CLI::Range(0, 1 << 20));
  json->excludes(svg)->excludes(xml);
  svg->excludes(xml);
  if (const auto status = line.parse(argc, argv)) return *status;

  Status dumped;
  const auto text = text_for(options, dumped);
  if (!text.ok()) return complain(text.error());
  if (const int status = put_out("oriel-topo", *text); status != 0) return status;
  return dumped.ok() ? 0 : complain(dumped.error());
}

}  // namespace
}  // namespace oriel::tools

int main(int argc, char** argv) {
  return oriel::tools::guarded_main("oriel-topo", [&] { return oriel::tools::run(argc, argv); });
}
