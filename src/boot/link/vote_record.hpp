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

/// Fixed-size encoding of an Error, for reductions over ranks and for flooding. Longer texts are
/// cut at a character boundary and end in "...". Several contexts are joined into one.
struct ErrorRecord {
  static constexpr std::size_t kMessageBytes = 448;
  static constexpr std::size_t kHintBytes = 160;
  static constexpr std::size_t kContextBytes = 192;
  /// Layout: code, scope, native domain, native value, origin rank; then three texts with their
  /// lengths.
  static constexpr std::size_t kEncodedBytes =
      12 + 3 * 2 + kMessageBytes + kHintBytes + kContextBytes;

  static void encode(ByteWriter& writer, const Error& error);
  /// Checks every field; the origin rank may be -1.
  static Status decode(ByteReader& reader, std::optional<Error>& out);
};

/// Value that must be the same on every rank, for Group::agree.
struct AgreedField {
  std::string name;         ///< used in the error, such as "the number of windows"
  std::uint64_t value = 0;  ///< the value or a hash of it
  /// Formats a value for the error; null prints the number. Other ranks' values may be arbitrary.
  std::string (*text)(std::uint64_t value) = nullptr;
};

/// Record that Group::agree reduces. The error is that of the lowest rank that failed itself; else
/// of the lowest rank that reports another rank's failure. Each field has its least and greatest
/// value, each with the lowest rank that holds it. The reduction is idempotent, commutative and
/// associative, so a dissemination pattern that counts some ranks twice is exact.
class VoteRecord {
 public:
  /// Limit of the fields in one agreement.
  static constexpr std::size_t kMaxFields = 64;

  VoteRecord(int world_rank, const Status& mine, std::span<const AgreedField> fields);

  void encode(ByteWriter& writer) const;
  /// Decodes a record; an error if it is malformed.
  static Result<VoteRecord> decode(ByteReader& reader);

  /// Reduces `other` into this record. If both sides succeeded with different numbers of fields,
  /// returns an error. A failed side may lack its fields, which no longer matter.
  Status merge(const VoteRecord& other);
  /// Returns the common outcome; `fields` supplies the names.
  Status outcome(std::span<const AgreedField> fields) const;

 private:
  struct Extreme {
    std::uint64_t value = 0;
    std::int32_t rank = -1;
  };
  struct Range {
    Extreme least, greatest;
  };
  VoteRecord() = default;
  std::pair<bool, std::int32_t> precedence() const;  // requires error_

  std::int32_t failed_rank_ = -1;  // -1: none
  std::optional<Error> error_;
  std::vector<Range> ranges_;
};

}  // namespace oriel::boot
