// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "oriel/error.hpp"

#include "base/bytes.hpp"

namespace oriel::boot {

/// An Error in a fixed number of bytes, so that it can be reduced over ranks and flooded. Longer
/// texts are cut at a character boundary and end in "...". Several contexts become one.
struct ErrorRecord {
  static constexpr std::size_t kMessageBytes = 448;
  static constexpr std::size_t kHintBytes = 160;
  static constexpr std::size_t kContextBytes = 192;
  /// code, scope, native domain, native value, origin rank; then three texts with their lengths.
  static constexpr std::size_t kEncodedBytes =
      12 + 3 * 2 + kMessageBytes + kHintBytes + kContextBytes;

  static void encode(ByteWriter& writer, const Error& error);
  /// Checks every field; the origin rank may be -1.
  static Status decode(ByteReader& reader, std::optional<Error>& out);
};

/// One value that must be the same on every rank, for Group::agree.
struct AgreedField {
  std::string name;         ///< for the error, as in "the number of windows"
  std::uint64_t value = 0;  ///< the value itself, or a hash of it
  /// The words for a value, for the error; the number if null. Gets other ranks' values too, which
  /// may be anything.
  std::string (*text)(std::uint64_t value) = nullptr;
};

/// What Group::agree reduces: the error of the lowest rank that failed itself, else of the lowest
/// that reports another rank's failure, and for each field the least and the
/// greatest value with the lowest rank that has it. The reduction is idempotent, commutative and
/// associative, so a dissemination pattern that counts some ranks twice still yields it exactly.
class VerdictRecord {
 public:
  /// More fields than this in one agreement are refused.
  static constexpr std::size_t kMaxFields = 64;

  VerdictRecord(int world_rank, const Status& mine, std::span<const AgreedField> fields);

  void encode(ByteWriter& writer) const;
  /// An error if it is malformed.
  static Result<VerdictRecord> decode(ByteReader& reader);

  /// An error if both sides succeeded with different numbers of fields. A side that failed may come
  /// without its fields: they no longer matter.
  Status merge(const VerdictRecord& other);
  /// The common outcome; `fields` gives the names.
  Status outcome(std::span<const AgreedField> fields) const;

 private:
  struct Extreme {
    std::uint64_t value = 0;
    std::int32_t rank = -1;
  };
  struct Range {
    Extreme least, greatest;
  };
  VerdictRecord() = default;
  std::pair<bool, std::int32_t> precedence() const;  // requires error_

  std::int32_t failed_rank_ = -1;  // -1: none
  std::optional<Error> error_;
  std::vector<Range> ranges_;
};

}  // namespace oriel::boot
