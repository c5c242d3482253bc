// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <system_error>

#include <fmt/format.h>

#include "base/write_file.hpp"
#include "perf/report/report.hpp"

namespace oriel::perf {
namespace {

Json describe(const Rounds& rounds, std::size_t bytes, int ranks, Collective collective) {
  const double us = rounds.median_us();
  Json json{{"rounds_us", rounds.us},
            {"median_us", us},
            {"p99_us", rounds.p99_us()},
            {"algbw_gb_per_s", algorithm_bandwidth(bytes, us)},
            {"busbw_gb_per_s", bus_bandwidth(bytes, us, ranks, collective)}};
  if (rounds.jittered_us) json["jittered_us"] = *rounds.jittered_us;
  if (!rounds.checked) return json;
  json["wrong"] = rounds.wrong;
  json["same_bits_on_all_ranks"] = rounds.same_bits;
  if (rounds.wrong == 0) return json;
  json["wrong_outputs"] = rounds.wrong_outputs;
  json["changed_inputs"] = rounds.changed_inputs;
  json["bytes_written_past_end"] = rounds.written_past_end;
  if (rounds.wrong_outputs > 0) json["first_wrong_index"] = rounds.first_wrong;
  return json;
}

Json describe(const PlacementResult& one, std::size_t bytes, int ranks, Collective collective) {
  Json json{{"ours", describe(one.ours, bytes, ranks, collective)}};
  if (one.theirs) json["theirs"] = describe(*one.theirs, bytes, ranks, collective);
  if (one.ratio)
    json["ratio"] = {{"median", one.ratio->median},
                     {"low", one.ratio->interval.low},
                     {"high", one.ratio->interval.high},
                     {"confidence", 0.95}};
  return json;
}

Json describe(const SetInfo& set) {
  // Leaves out the library's folder and the hosts, because a document may be published.
  Json devices = Json::array();
  for (const RankInfo& one : set.ranks) devices.push_back(one.device);
  return {{"library", std::filesystem::path(set.library).filename().string()},
          {"version", set.version},
          {"registration", set.registration},
          {"init_ms", set.init_ms},
          {"allocate_and_register_ms", set.allocate_ms},
          {"devices", std::move(devices)}};
}

Json environment_of(const Contestant& contestant) {
  Json json = Json::object();
  for (const auto& [name, value] : contestant.environment) json[name] = value;
  return json;
}

}  // namespace

Json to_json(const Options& options, const RunInfo& info, const std::vector<CaseResult>& results,
             const std::string& error) {
  const int ranks = static_cast<int>(info.ours.ranks.size());
  Json cases = Json::array();
  for (const CaseResult& result : results) {
    Json one{{"bytes", result.bytes()},         {"count", result.count},
             {"type", name_of(result.type)},    {"op", name_of(result.op)},
             {"calls_per_round", result.calls}, {"buffer_sets", result.sets}};
    if (result.out_of_place)
      one["out_of_place"] =
          describe(*result.out_of_place, result.bytes(), ranks, options.collective);
    if (result.in_place)
      one["in_place"] = describe(*result.in_place, result.bytes(), ranks, options.collective);
    cases.push_back(std::move(one));
  }
  Json document{{"format", 1},
                {"collective", table_name(options.collective)},
                {"root", has_root(options.collective) ? options.root : -1},
                {"backend", info.backend},
                {"ranks", ranks},
                {"ranks_per_node", options.per_node},
                {"threads", options.threads},
                {"rounds", options.rounds},
                {"graph_launches", options.graph_launches},
                {"warmup", options.warmup},
                {"checked", options.check},
                {"seed", options.seed},
                {"jitter_us", options.jitter_us},
                {"time_unit", "microseconds per call, slowest rank"},
                {"ours", describe(info.ours)},
                {"cases", std::move(cases)},
                {"wrong", count_wrong(results)}};
  document["ours"]["environment"] = environment_of(options.ours);
  if (info.theirs) {
    document["theirs"] = describe(*info.theirs);
    document["theirs"]["environment"] = environment_of(*options.against);
  }
  if (!error.empty()) document["error"] = error;
  return document;
}

namespace {

/// Returns true for anything but a regular file (link, device such as /dev/stdout, pipe):
/// write_json() writes through it instead of replacing it.
bool is_written_in_place(const std::string& path) {
  std::error_code ignored;
  const auto status = std::filesystem::symlink_status(path, ignored);
  return std::filesystem::exists(status) && !std::filesystem::is_regular_file(status);
}

}  // namespace

Status check_json_path(const std::string& path) {
  const std::string fresh = path + ".new";
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored))
    return Error(ErrorCode::invalid_argument, fmt::format("-J {}: this is a folder", path));
  if (is_written_in_place(path)) return {};
  errno = 0;
  if (!std::ofstream(fresh, std::ios::trunc))
    return system_error(fmt::format("-J {}: opening {} for writing", path, fresh));
  std::filesystem::remove(fresh, ignored);
  return {};
}

Status write_json(const std::string& path, const Json& document) {
  const std::string text = document.dump(1) + '\n';
  if (!is_written_in_place(path)) return write_file(path, text);
  errno = 0;
  std::ofstream out(path, std::ios::trunc);
  if (!(out << text).flush()) return system_error("writing " + path);
  return {};
}

}  // namespace oriel::perf
