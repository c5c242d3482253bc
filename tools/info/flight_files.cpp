// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "info/flight_files.hpp"

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <limits>
#include <system_error>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/read_file.hpp"
#include "base/try.hpp"

namespace oriel::tools {
namespace {

using Json = nlohmann::json;

constexpr std::size_t kMostFiles = 16384;
constexpr std::size_t kMostBytes = 1 << 20;  // 1,024 records take less than half of this
constexpr std::uint64_t kMostRanks = 1 << 20;

Error damaged(const std::string& what) {
  return Error(ErrorCode::invalid_argument, what);
}

Result<std::uint64_t> number_of(const Json& object, const char* key, std::uint64_t least,
                                std::uint64_t most) {
  const auto it = object.find(key);
  if (it == object.end() || !it->is_number_unsigned()) {
    return damaged(fmt::format("\"{}\" is missing or no whole number", key));
  }
  const auto value = it->get<std::uint64_t>();
  if (value >= least && value <= most) return value;
  return damaged(fmt::format("\"{}\" is {}, not {} to {}", key, value, least, most));
}

Result<std::string> text_of(const Json& object, const char* key) {
  const auto it = object.find(key);
  if (it == object.end() || !it->is_string()) {
    return damaged(fmt::format("\"{}\" is missing or no text", key));
  }
  auto text = it->get<std::string>();
  std::replace_if(
      text.begin(), text.end(), [](char c) { return c < ' ' || c > '~'; }, '?');
  return text;
}

/// Parses the name of one of an enumeration's first `count` values.
template <typename Enum>
Result<Enum> named(const Json& object, const char* key, int count) {
  ORIEL_TRY(const std::string text, text_of(object, key));
  for (int value = 0; value < count; ++value) {
    if (text == name_of(static_cast<Enum>(value))) return static_cast<Enum>(value);
  }
  return damaged(fmt::format("\"{}\" is \"{}\", which is unknown", key, text));
}

Result<NotedCall> read_call(const Json& object, int ranks) {
  if (!object.is_object()) return damaged("it is no object");
  constexpr auto kAny = std::numeric_limits<std::uint64_t>::max();
  const auto last_rank = static_cast<std::uint64_t>(ranks - 1);
  NotedCall noted;
  ORIEL_TRY(const std::string kind, text_of(object, "kind"));
  if (kind == "send" || kind == "receive") {
    noted.kind = kind == "send" ? comm::FlightKind::send : comm::FlightKind::receive;
    ORIEL_TRY(const auto peer, number_of(object, "peer", 0, last_rank));
    noted.call.root = static_cast<std::int32_t>(peer);
  } else {
    ORIEL_TRY(noted.call.collective,
              named<kernels::Collective>(object, "kind", kernels::kCollectiveCount));
    if (kernels::reduces(noted.call.collective)) {
      ORIEL_TRY(noted.call.op, named<ReduceOp>(object, "op", kReduceOpCount));
    }
    if (kernels::has_root(noted.call.collective)) {
      ORIEL_TRY(const auto root, number_of(object, "root", 0, last_rank));
      noted.call.root = static_cast<std::int32_t>(root);
    }
  }
  ORIEL_TRY(noted.call.type, named<DataType>(object, "type", kDataTypeCount));
  ORIEL_TRY(noted.call.count, number_of(object, "count", 0, kAny));
  ORIEL_TRY(noted.number, number_of(object, "number", 1, kAny));
  const auto ended = object.find("ended_ns");
  if (ended != object.end()) noted.ended = !ended->is_null();
  const auto ended_on_gpu = object.find("ended");
  if (ended_on_gpu != object.end() && ended_on_gpu->is_boolean()) {
    noted.ended = ended_on_gpu->get<bool>();
  }
  return noted;
}

Result<FlightFile> read_object(const Json& object) {
  if (!object.is_object()) return damaged("it is no JSON object, or was cut off");
  ORIEL_CHECK(number_of(object, "oriel_flight", 1, 1));
  FlightFile file;
  ORIEL_TRY(file.communicator, text_of(object, "communicator"));
  ORIEL_TRY(file.name, text_of(object, "name"));
  ORIEL_TRY(file.reason, text_of(object, "reason"));
  ORIEL_TRY(const auto ranks, number_of(object, "ranks", 1, kMostRanks));
  ORIEL_TRY(const auto rank, number_of(object, "rank", 0, ranks - 1));
  file.ranks = static_cast<int>(ranks);
  file.rank = static_cast<int>(rank);
  const auto calls = object.find("calls");
  if (calls == object.end() || !calls->is_array())
    return damaged("\"calls\" is missing or no list");
  if (calls->size() > comm::FlightRecorder::kRecords) {
    return damaged(fmt::format("it has {} calls, more than {}", calls->size(),
                               comm::FlightRecorder::kRecords));
  }
  for (std::size_t i = 0; i < calls->size(); ++i) {
    auto call = read_call((*calls)[i], file.ranks);
    if (!call.ok()) return std::move(call).error().with_context(fmt::format("call {}", i));
    file.calls.push_back(std::move(call).value());
  }
  return file;
}

}  // namespace

Result<FlightFile> read_flight_file(const std::string& path) {
  const ReadLimits limits{.bytes = kMostBytes, .no_writer = NoWriter::is_refused};
  ORIEL_TRY(const std::string text, read_file(path, limits));
  auto file = read_object(Json::parse(text, nullptr, false));
  if (!file.ok()) return std::move(file).error().with_context(path);
  file.value().path = path;
  return file;
}

Result<std::vector<std::string>> find_flight_files(const std::string& folder) {
  namespace fs = std::filesystem;
  std::error_code failed;
  std::vector<std::string> found;
  for (fs::directory_iterator at(folder, failed), end; !failed && at != end; at.increment(failed)) {
    const std::string name = at->path().filename().string();
    if (!name.starts_with("flight-") || !name.ends_with(".json")) continue;
    found.push_back(at->path().string());
    if (found.size() > kMostFiles) {
      return Error(ErrorCode::invalid_argument,
                   fmt::format("{} holds more than {} files of ranks", folder, kMostFiles));
    }
  }
  if (failed) {
    return Error(ErrorCode::system, fmt::format("reading {}: {}", folder, failed.message()));
  }
  if (found.empty()) {
    return Error(ErrorCode::invalid_argument,
                 fmt::format("{} holds no file of a rank (flight-*.json)", folder))
        .with_hint("start the job with ORIEL_DUMP_DIR set to this folder");
  }
  std::sort(found.begin(), found.end());
  return found;
}

}  // namespace oriel::tools
