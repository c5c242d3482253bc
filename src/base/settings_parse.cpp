// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cstddef>
#include <limits>

#include <fmt/format.h>

#include "base/settings_table.hpp"

namespace oriel::settings_table {
namespace {

constexpr int kFlagWords = 4;
constexpr std::array<std::string_view, kFlagWords> kTrueWords = {"1", "on", "true", "yes"};
constexpr std::array<std::string_view, kFlagWords> kFalseWords = {"0", "off", "false", "no"};

struct Unit {
  std::string_view text;
  std::uint64_t factor;
};

constexpr std::array kByteUnits = {Unit{"tib", 1ULL << 40},
                                   Unit{"gib", 1ULL << 30},
                                   Unit{"mib", 1ULL << 20},
                                   Unit{"kib", 1ULL << 10},
                                   Unit{"t", 1ULL << 40},
                                   Unit{"g", 1ULL << 30},
                                   Unit{"m", 1ULL << 20},
                                   Unit{"k", 1ULL << 10},
                                   Unit{"b", 1},
                                   Unit{"", 1}};
constexpr std::array kTimeUnits = {
    Unit{"h", 3'600'000'000'000}, Unit{"min", 60'000'000'000}, Unit{"s", 1'000'000'000},
    Unit{"ms", 1'000'000},        Unit{"us", 1'000},           Unit{"", 1'000'000'000}};

std::string lower(std::string_view text) {
  std::string out(text);
  std::transform(out.begin(), out.end(), out.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return out;
}

template <typename Integer>
std::optional<Integer> parse_whole(std::string_view text) {
  Integer value{};
  const auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (status != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

/// Parses digits and a unit to one number; nullopt if either is invalid or the product overflows.
std::optional<std::uint64_t> parse_with_unit(std::string_view text, std::span<const Unit> units) {
  const auto digits = static_cast<std::size_t>(
      std::find_if(text.begin(), text.end(), [](unsigned char c) { return !std::isdigit(c); }) -
      text.begin());
  const auto number = parse_whole<std::uint64_t>(text.substr(0, digits));
  const std::string unit = lower(text.substr(digits));
  const auto known = std::find_if(units.begin(), units.end(),
                                  [&](const Unit& candidate) { return candidate.text == unit; });
  if (!number || known == units.end()) return std::nullopt;
  if (*number > std::numeric_limits<std::uint64_t>::max() / known->factor) return std::nullopt;
  return *number * known->factor;
}

std::optional<Duration> parse_duration(std::string_view text, Duration least, Duration most) {
  const auto nanoseconds = parse_with_unit(text, kTimeUnits);
  if (!nanoseconds || *nanoseconds < static_cast<std::uint64_t>(least.count()) ||
      *nanoseconds > static_cast<std::uint64_t>(most.count())) {
    return std::nullopt;
  }
  return Duration(static_cast<Duration::rep>(*nanoseconds));
}

std::string format_bytes(std::uint64_t bytes) {
  constexpr std::array<std::string_view, 4> kNames = {"TiB", "GiB", "MiB", "KiB"};
  for (std::size_t i = 0; i < kNames.size(); ++i) {
    const std::uint64_t factor = kByteUnits.at(i).factor;
    if (bytes != 0 && bytes % factor == 0) return fmt::format("{}{}", bytes / factor, kNames.at(i));
  }
  return fmt::format("{}", bytes);
}

std::string format_duration(Duration duration) {
  const auto nanoseconds = static_cast<std::uint64_t>(duration.count());
  for (const Unit& unit : kTimeUnits) {
    if (nanoseconds % unit.factor == 0) {
      return fmt::format("{}{}", nanoseconds / unit.factor, unit.text);
    }
  }
  return fmt::format("{}us", nanoseconds / 1'000);
}

struct Parser {
  std::string_view text;
  Settings& settings;

  bool operator()(const BoolKind& kind) const {
    const std::string word = lower(text);
    const bool yes = std::find(kTrueWords.begin(), kTrueWords.end(), word) != kTrueWords.end();
    const bool no = std::find(kFalseWords.begin(), kFalseWords.end(), word) != kFalseWords.end();
    settings.*kind.member = yes;
    return yes || no;
  }
  bool operator()(const IntegerKind& kind) const {
    const auto value = parse_whole<std::int64_t>(text);
    if (!value || *value < kind.least || *value > kind.most) return false;
    settings.*kind.member = *value;
    return true;
  }
  bool operator()(const BytesKind& kind) const {
    const auto value = parse_with_unit(text, kByteUnits);
    if (!value || *value < kind.least || *value > kind.most) return false;
    if (*value % kind.multiple != 0) return false;
    settings.*kind.member = *value;
    return true;
  }
  bool operator()(const DurationKind& kind) const {
    const auto value = parse_duration(text, kind.least, kind.most);
    if (value) settings.*kind.member = *value;
    return value.has_value();
  }
  bool operator()(const OptionalDurationKind& kind) const {
    if (lower(text) == "off") {
      settings.*kind.member = std::nullopt;
      return true;
    }
    const auto value = parse_duration(text, kind.least, kind.most);
    if (value) settings.*kind.member = *value;
    return value.has_value();
  }
  bool operator()(const ChoiceKind& kind) const {
    const std::string wanted = lower(text);
    for (const Word& word : kind.words) {
      if (word.text != wanted) continue;
      kind.set(settings, word.value);
      return true;
    }
    return false;
  }
  bool operator()(const StringKind& kind) const {
    if (kind.is_allowed != nullptr && !kind.is_allowed(text)) return false;
    settings.*kind.member = std::string(text);
    return true;
  }
};

struct Formatter {
  const Settings& settings;

  std::string operator()(const BoolKind& kind) const { return settings.*kind.member ? "1" : "0"; }
  std::string operator()(const IntegerKind& kind) const {
    return fmt::format("{}", settings.*kind.member);
  }
  std::string operator()(const BytesKind& kind) const {
    return format_bytes(settings.*kind.member);
  }
  std::string operator()(const DurationKind& kind) const {
    return format_duration(settings.*kind.member);
  }
  std::string operator()(const OptionalDurationKind& kind) const {
    const auto& value = settings.*kind.member;
    return value ? format_duration(*value) : "off";
  }
  std::string operator()(const ChoiceKind& kind) const {
    const int value = kind.get(settings);
    const auto word = std::find_if(kind.words.begin(), kind.words.end(),
                                   [&](const Word& candidate) { return candidate.value == value; });
    return word == kind.words.end() ? fmt::format("{}", value) : std::string(word->text);
  }
  std::string operator()(const StringKind& kind) const { return settings.*kind.member; }
};

struct Allowed {
  std::string operator()(const BoolKind&) const {
    return fmt::format("{} or {}", fmt::join(kTrueWords, ", "), fmt::join(kFalseWords, ", "));
  }
  std::string operator()(const IntegerKind& kind) const {
    return fmt::format("{} to {}", kind.least, kind.most);
  }
  std::string operator()(const BytesKind& kind) const {
    std::string text = fmt::format("{} to {}", format_bytes(kind.least), format_bytes(kind.most));
    if (kind.multiple > 1) text += fmt::format(", a multiple of {}", format_bytes(kind.multiple));
    return text + "; units K, M, G, T";
  }
  std::string operator()(const DurationKind& kind) const {
    return fmt::format("{} to {}; units us, ms, s, min, h, seconds if none is given",
                       format_duration(kind.least), format_duration(kind.most));
  }
  std::string operator()(const OptionalDurationKind& kind) const {
    return "off, or " + (*this)(DurationKind{nullptr, kind.least, kind.most});
  }
  std::string operator()(const ChoiceKind& kind) const {
    std::string text;
    for (const Word& word : kind.words) {
      text += (text.empty() ? "" : ", ") + std::string(word.text);
    }
    return text;
  }
  std::string operator()(const StringKind& kind) const { return std::string(kind.allowed); }
};

struct KindName {
  const char* operator()(const BoolKind&) const { return "flag"; }
  const char* operator()(const IntegerKind&) const { return "integer"; }
  const char* operator()(const BytesKind&) const { return "bytes"; }
  const char* operator()(const DurationKind&) const { return "duration"; }
  const char* operator()(const OptionalDurationKind&) const { return "duration"; }
  const char* operator()(const ChoiceKind&) const { return "word"; }
  const char* operator()(const StringKind&) const { return "text"; }
};

}  // namespace

bool parse_leniently(const Kind& kind, std::string_view text, Settings& settings) {
  const auto number = parse_whole<std::int64_t>(text);
  if (!number) return false;
  if (std::holds_alternative<BoolKind>(kind) || std::holds_alternative<ChoiceKind>(kind)) {
    return parse(kind, *number == 0 ? "0" : "1", settings);
  }
  const auto* const integer = std::get_if<IntegerKind>(&kind);
  if (integer == nullptr) return false;
  settings.*integer->member = std::clamp(*number, integer->least, integer->most);
  return true;
}

bool parse(const Kind& kind, std::string_view text, Settings& settings) {
  return std::visit(Parser{text, settings}, kind);
}
std::string format(const Kind& kind, const Settings& settings) {
  return std::visit(Formatter{settings}, kind);
}
std::string allowed(const Kind& kind) {
  return std::visit(Allowed{}, kind);
}
std::string kind_name(const Kind& kind) {
  return std::visit(KindName{}, kind);
}

}  // namespace oriel::settings_table
