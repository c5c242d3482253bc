// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "base/settings.hpp"

#include <cstdlib>
#include <fstream>
#include <map>
#include <set>
#include <sstream>

#include <catch2/catch.hpp>

#include "base/settings_table.hpp"

namespace oriel {
namespace {

using namespace std::chrono_literals;
using Environment = std::map<std::string, std::string>;

Result<Settings> read(const Environment& environment) {
  return Settings::from_environment([&](const char* name) -> std::optional<std::string> {
    const auto it = environment.find(name);
    if (it == environment.end()) return std::nullopt;
    return it->second;
  });
}

std::string message_of(const Environment& environment) {
  const auto result = read(environment);
  REQUIRE_FALSE(result.ok());
  CHECK(result.error().code() == ErrorCode::invalid_usage);
  return result.error().message();
}

/// Returns an allowed value of the row's kind that differs from the row's default.
std::string value_other_than_default(const settings_table::Row& row) {
  using namespace settings_table;
  struct Extremes {
    using Texts = std::vector<std::string>;
    Texts operator()(const BoolKind&) const { return {"0", "1"}; }
    Texts operator()(const IntegerKind& kind) const {
      return {std::to_string(kind.least), std::to_string(kind.most)};
    }
    Texts operator()(const BytesKind& kind) const {
      return {std::to_string(kind.least), std::to_string(kind.most)};
    }
    Texts operator()(const DurationKind& kind) const {
      return {std::to_string(kind.most / 1us) + "us"};
    }
    Texts operator()(const OptionalDurationKind& kind) const {
      return {std::to_string(kind.most / 1us) + "us"};
    }
    Texts operator()(const ChoiceKind& kind) const { return {std::string(kind.words.back().text)}; }
    Texts operator()(const StringKind&) const { return {"some text"}; }
  };
  for (const std::string& text : std::visit(Extremes{}, row.kind)) {
    Settings settings;
    REQUIRE(parse(row.kind, text, settings));
    if (format(row.kind, settings) != format(row.kind, Settings{})) return text;
  }
  FAIL("the default of " << row.name << " is its only value");
  return {};
}

}  // namespace

TEST_CASE("an empty environment gives the defaults", "[req:1.39]") {
  const auto settings = read({});
  REQUIRE(settings.ok());
  CHECK(settings->timeout == 30s);
  CHECK_FALSE(settings->collective_timeout.has_value());
  CHECK(settings->backend == BackendChoice::automatic);
  CHECK(settings->scratch_size_bytes == 64ULL << 20);
  CHECK(settings->log_level == LogLevel::alert);
}

TEST_CASE("every kind of value is read", "[req:1.39]") {
  const auto settings = read({{"ORIEL_SOCKET_IFNAME", "=eth0,ib"},
                              {"ORIEL_TIMEOUT", "1500ms"},
                              {"ORIEL_COLLECTIVE_TIMEOUT", "2min"},
                              {"ORIEL_BACKEND", "Host"},
                              {"ORIEL_BIG_SIZE", "64GiB"},
                              {"ORIEL_DETERMINISTIC", "on"},
                              {"ORIEL_SCRATCH_SIZE", "4M"},
                              {"ORIEL_CTAS", "16"},
                              {"ORIEL_LOG", "INFO"}});
  REQUIRE(settings.ok());
  CHECK(settings->socket_ifname == "=eth0,ib");
  CHECK(settings->timeout == 1500ms);
  CHECK(settings->collective_timeout == Duration(2min));
  CHECK(settings->backend == BackendChoice::host);
  CHECK(settings->big_size_bytes == 64ULL << 30);
  CHECK(settings->deterministic);
  CHECK(settings->scratch_size_bytes == 4ULL << 20);
  CHECK(settings->ctas == 16);
  CHECK(settings->log_level == LogLevel::info);
}

TEST_CASE("a setting of a time or size is read with any unit, and without one", "[req:1.39]") {
  CHECK(read({{"ORIEL_TIMEOUT", "5"}})->timeout == 5s);
  CHECK(read({{"ORIEL_TIMEOUT", "5s"}})->timeout == 5s);
  CHECK(read({{"ORIEL_TIMEOUT", "5000us"}})->timeout == 5ms);
  CHECK(read({{"ORIEL_TIMEOUT", "1h"}})->timeout == 1h);
  CHECK(read({{"ORIEL_SCRATCH_SIZE", "1048576"}})->scratch_size_bytes == 1ULL << 20);
  CHECK(read({{"ORIEL_SCRATCH_SIZE", "2048KiB"}})->scratch_size_bytes == 2ULL << 20);
  CHECK(read({{"ORIEL_SCRATCH_SIZE", "2048k"}})->scratch_size_bytes == 2ULL << 20);
  CHECK_FALSE(read({{"ORIEL_COLLECTIVE_TIMEOUT", "off"}})->collective_timeout.has_value());
}

TEST_CASE("a setting is read by NCCL's name, unless the one by Oriel's name is not empty",
          "[req:1.39]") {
  CHECK(read({{"NCCL_DEBUG", "WARN"}})->log_level == LogLevel::warn);
  CHECK(read({{"NCCL_DEBUG", "WARN"}, {"ORIEL_LOG", "trace"}})->log_level == LogLevel::trace);
  CHECK(read({{"NCCL_DEBUG", "ABORT"}})->log_level == LogLevel::info);
  CHECK(read({{"NCCL_HOSTID", "a"}, {"ORIEL_HOSTID", "b"}})->host_id == "b");
  CHECK(read({{"NCCL_HOSTID", "a"}, {"ORIEL_HOSTID", ""}})->host_id == "a");
  CHECK(read({{"NCCL_SOCKET_IFNAME", "^lo"}})->socket_ifname == "^lo");
}

TEST_CASE("a number out of range under NCCL's name is taken as the nearest",
          "[req:5.17][promise:9]") {
  CHECK(read({{"NCCL_MAX_CTAS", "2000"}})->max_ctas == 1024);
  CHECK(read({{"NCCL_MAX_CTAS", "-2"}})->max_ctas == 0);
  CHECK(read({{"NCCL_GRAPH_MIXING_SUPPORT", "2"}})->graph_mixing == GraphMixing::on);
  CHECK(read({{"NCCL_CTA_POLICY", "7"}})->cta_policy == CtaPolicy::efficiency);
  CHECK(read({{"NCCL_P2P_DISABLE", "4"}})->p2p_disable);
  CHECK(message_of({{"NCCL_MAX_CTAS", "many"}}).find("0 to 1024") != std::string::npos);
  CHECK(message_of({{"ORIEL_MAX_CTAS", "2000"}}).find("0 to 1024") != std::string::npos);
}

TEST_CASE("a bad value is named, with the allowed ones", "[req:1.38]") {
  CHECK(message_of({{"ORIEL_BACKEND", "gpu"}}) ==
        "environment variable ORIEL_BACKEND has the value \"gpu\"; allowed: auto, cuda, host");
  CHECK(message_of({{"NCCL_DEBUG", "loud"}}) ==
        "environment variable NCCL_DEBUG has the value \"loud\"; allowed: none, alert, version, "
        "warn, info, abort, trace");
  CHECK(message_of({{"ORIEL_CTAS", "1025"}}) ==
        "environment variable ORIEL_CTAS has the value \"1025\"; allowed: 0 to 1024");
  CHECK(message_of({{"ORIEL_BIG_SIZE", "5GiB"}}) ==
        "environment variable ORIEL_BIG_SIZE has the value \"5GiB\"; allowed: 0 to 64TiB, a "
        "multiple of 4GiB; units K, M, G, T");
  CHECK(message_of({{"NCCL_SOCKET_IFNAME", "="}}) ==
        "environment variable NCCL_SOCKET_IFNAME has the value \"=\"; allowed: names or prefixes "
        "separated by commas; `=` in front makes them exact, `^` excludes them");
  for (const char* nothing : {"=", "^", "^=", ",", ",,", "=,"}) {
    CAPTURE(nothing);
    CHECK(message_of({{"ORIEL_SOCKET_IFNAME", nothing}}).find("ORIEL_SOCKET_IFNAME") !=
          std::string::npos);
  }
  CHECK(read({{"ORIEL_SOCKET_IFNAME", ",lo,"}}).ok());
  for (const char* wrong : {",", ",,", "a,b,c,d,e", ",a,b,,c,d,e"}) {
    CAPTURE(wrong);
    CHECK(message_of({{"ORIEL_PATHS", wrong}}).find("up to 4 names of interfaces") !=
          std::string::npos);
  }
  for (const char* right : {"a", "auto", ",a,b,,c,d,"}) CHECK(read({{"ORIEL_PATHS", right}}).ok());
}

TEST_CASE("values of settings that do not parse completely or are out of range are refused",
          "[req:1.38]") {
  for (const char* value : {"x", "-1s", "1 s", " 1", "1.5", "0", "25h", "1week", "s",
                            "99999999999999999999", "18446744073709551615h"}) {
    CAPTURE(value);
    CHECK_FALSE(read({{"ORIEL_TIMEOUT", value}}).ok());
  }
  for (const char* value : {"", "1M "}) {
    CAPTURE(value);
    CHECK(read({{"ORIEL_SCRATCH_SIZE", value}}).ok() == (*value == '\0'));
  }
  for (const char* value :
       {"65M", "1023K", "1048577", "1MB", "0x100000", "17179869184G", "17592186044420M"}) {
    CAPTURE(value);
    CHECK_FALSE(read({{"ORIEL_SCRATCH_SIZE", value}}).ok());
  }
  for (const char* value : {"2", "maybe", "truee"}) {
    CAPTURE(value);
    CHECK_FALSE(read({{"ORIEL_DETERMINISTIC", value}}).ok());
  }
  for (const char* value : {"+1", "1e3", "-1", "1025"}) {
    CAPTURE(value);
    CHECK_FALSE(read({{"ORIEL_CTAS", value}}).ok());
  }
}

TEST_CASE("every row has a name, a sentence and a default that reads back", "[req:1.39]") {
  std::set<std::string> names;
  for (const auto& row : settings_table::rows()) {
    CAPTURE(row.name);
    CHECK(names.insert(row.name).second);
    CHECK(std::string(row.name).starts_with("ORIEL_"));
    if (row.alias != nullptr) {
      CHECK(names.insert(row.alias).second);
      CHECK(std::string(row.alias).starts_with("NCCL_"));
    }
    const std::string doc = row.doc;
    CHECK(doc.size() > 20);
    CHECK(doc.ends_with("."));
    CHECK_FALSE(settings_table::allowed(row.kind).empty());

    const std::string fallback = settings_table::format(row.kind, Settings{});
    if (fallback.empty()) continue;
    const auto settings = read({{row.name, fallback}});
    REQUIRE(settings.ok());
    CHECK(settings_table::format(row.kind, *settings) == fallback);
  }
}

TEST_CASE("each setting has a group, whose settings follow each other", "[req:4.12]") {
  std::vector<std::string> groups;
  for (const auto& setting : describe_settings(Settings{})) {
    CHECK_FALSE(setting.group.empty());
    if (groups.empty() || groups.back() != setting.group) groups.push_back(setting.group);
  }
  CHECK(groups.size() > 3);
  CHECK(std::set<std::string>(groups.begin(), groups.end()).size() == groups.size());
}

TEST_CASE("no two rows fill the same member", "[req:1.39]") {
  const auto before = describe_settings(Settings{});
  for (const auto& row : settings_table::rows()) {
    CAPTURE(row.name);
    const auto settings = read({{row.name, value_other_than_default(row)}});
    REQUIRE(settings.ok());
    const auto after = describe_settings(*settings);
    for (std::size_t i = 0; i < after.size(); ++i) {
      CHECK((after.at(i).value != before.at(i).value) == (after.at(i).name == row.name));
    }
  }
}

TEST_CASE("unknown names are warned about, with the nearest known one", "[req:1.39]") {
  const std::vector<std::string> names = {"PATH",      "ORIEL_TIMEOUT",       "ORIEL_TIMOUT",
                                          "NCCL_ALGO", "ORIEL_TEST_ANYTHING", "ORIEL_ZEBRA_STRIPES",
                                          "ORIEL_CTA"};
  const auto warnings = unknown_setting_warnings(names);
  REQUIRE(warnings.size() == 3);
  CHECK(warnings.at(0) ==
        "environment variable ORIEL_TIMOUT is not a setting of Oriel; did you mean ORIEL_TIMEOUT?"
        "; hint: correct its name, or unset it");
  CHECK(warnings.at(1) ==
        "environment variable ORIEL_ZEBRA_STRIPES is not a setting of Oriel; "
        "hint: correct its name, or unset it");
  CHECK(warnings.at(2) ==
        "environment variable ORIEL_CTA is not a setting of Oriel; did you mean ORIEL_CTAS?"
        "; hint: correct its name, or unset it");
}

TEST_CASE("the process reads its environment once, errors included", "[req:1.39]") {
  REQUIRE(::setenv("ORIEL_CTAS", "many", 1) == 0);
  reread_process_settings();
  const auto first = process_settings();
  REQUIRE_FALSE(first.ok());
  REQUIRE(::setenv("ORIEL_CTAS", "7", 1) == 0);
  const auto second = process_settings();
  REQUIRE_FALSE(second.ok());
  CHECK(second.error().to_string() == first.error().to_string());

  reread_process_settings();
  const auto third = process_settings();
  REQUIRE(third.ok());
  CHECK((*third)->ctas == 7);
  REQUIRE(::unsetenv("ORIEL_CTAS") == 0);
  CHECK(process_settings().value() == third.value());
  reread_process_settings();
  CHECK(process_settings().value()->ctas == 0);
  CHECK((*third)->ctas == 7);
}

TEST_CASE("docs/settings.md equals the page made from the table of settings", "[req:1.39]") {
  std::ifstream file(ORIEL_TEST_SOURCE_DIR "/docs/settings.md");
  REQUIRE(file.is_open());
  std::ostringstream page;
  page << file.rdbuf();
  INFO("write it again: oriel-info --env --markdown > docs/settings.md");
  CHECK(page.str() == settings_markdown());
}

}  // namespace oriel
