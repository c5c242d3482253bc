// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>

#include "oriel/error.hpp"

#include "base/settings.hpp"

/// Rows of the settings table; parses and formats each kind of value. Private to settings*.cpp and
/// tests.
namespace oriel::settings_table {

struct BoolKind {
  bool Settings::*member;
};

struct IntegerKind {
  std::int64_t Settings::*member;
  std::int64_t least;
  std::int64_t most;
};

/// A number with an optional unit: B, K, M, G, T, or KiB to TiB; all are powers of 1024.
struct BytesKind {
  std::uint64_t Settings::*member;
  std::uint64_t least;
  std::uint64_t most;
  std::uint64_t multiple = 1;  ///< every value is a multiple of this
};

/// A number with an optional unit: us, ms, s, min, h; seconds if there is none.
struct DurationKind {
  Duration Settings::*member;
  Duration least;
  Duration most;
};

/// A duration or "off".
struct OptionalDurationKind {
  std::optional<Duration> Settings::*member;
  Duration least;
  Duration most;
};

struct Word {
  std::string_view text;  ///< lower case; user input may use any case
  int value;
};

/// One of a few words. If a value has several words, the first is the one that is written.
struct ChoiceKind {
  std::span<const Word> words;
  int (*get)(const Settings&);
  void (*set)(Settings&, int);
};

struct StringKind {
  std::string Settings::*member;
  std::string_view allowed;                        ///< in words
  bool (*is_allowed)(std::string_view) = nullptr;  ///< nullptr: any text is allowed
};

using Kind = std::variant<BoolKind, IntegerKind, BytesKind, DurationKind, OptionalDurationKind,
                          ChoiceKind, StringKind>;

struct Row {
  const char* name;
  const char* alias;  ///< nullptr if NCCL has no such setting
  Kind kind;
  const char* doc;  ///< one or more sentences
  const char* group;
};

std::span<const Row> rows();

/// Parses `text` into the row's member; returns false if the value is not allowed.
bool parse(const Kind& kind, std::string_view text, Settings& settings);
/// Parses a whole number as NCCL does: takes the nearest allowed number. Where a truth value or a
/// choice is allowed, all but 0 count as 1. Returns false for other text and other kinds.
bool parse_leniently(const Kind& kind, std::string_view text, Settings& settings);
/// Formats the member's value so that parse() can read it back.
std::string format(const Kind& kind, const Settings& settings);
/// Describes the allowed values.
std::string allowed(const Kind& kind);
std::string kind_name(const Kind& kind);

}  // namespace oriel::settings_table
