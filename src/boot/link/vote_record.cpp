// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "boot/link/vote_record.hpp"

#include <algorithm>
#include <string>
#include <string_view>

#include <fmt/format.h>

#include "base/try.hpp"

namespace oriel::boot {
namespace {

std::string_view cut(std::string_view text, std::size_t limit, std::string& storage) {
  if (text.size() <= limit) return text;
  std::size_t end = limit - 3;
  // Avoids a cut inside a character: UTF-8 continuation bytes are 10xxxxxx.
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xc0) == 0x80) --end;
  storage = std::string(text.substr(0, end)) + "...";
  return storage;
}

void put_text(ByteWriter& writer, std::string_view text, std::size_t limit) {
  std::string storage;
  const std::string_view kept = cut(text, limit, storage);
  writer.put(static_cast<std::uint16_t>(kept.size())).put_raw(std::as_bytes(std::span(kept)));
  writer.put_raw(Bytes(limit - kept.size()));
}

// Replaces control characters by '?': a peer's text may reach a log or a terminal.
Result<std::string> get_text(ByteReader& reader, std::size_t limit) {
  const auto length = reader.get<std::uint16_t>();
  const ByteView raw = reader.get_raw(limit);
  if (!reader.good() || length > limit) {
    return Error(
        ErrorCode::remote,
        fmt::format(
            "a peer's error record is malformed: a text of {} bytes or cut short; the limit is {}",
            length, limit));
  }
  std::string text(reinterpret_cast<const char*>(raw.data()), length);
  for (char& letter : text) {
    if (static_cast<unsigned char>(letter) < 0x20 || letter == 0x7f) letter = '?';
  }
  return text;
}

std::string joined_contexts(const Error& error) {
  std::string text;
  for (auto it = error.contexts().rbegin(); it != error.contexts().rend(); ++it) {
    if (!text.empty()) text += ": ";
    text += *it;
  }
  return text;
}

std::string text_of(const AgreedField& field, std::uint64_t value) {
  return field.text != nullptr ? field.text(value) : std::to_string(value);
}

template <typename Enum>
bool in_range(std::uint8_t value, Enum first, Enum last) {
  return value >= static_cast<std::uint8_t>(first) && value <= static_cast<std::uint8_t>(last);
}

}  // namespace

void ErrorRecord::encode(ByteWriter& writer, const Error& error) {
  writer.put(error.code()).put(error.scope()).put(error.native().domain).put(std::uint8_t{0});
  writer.put(static_cast<std::int32_t>(error.native().value));
  writer.put(static_cast<std::int32_t>(error.origin_rank()));
  put_text(writer, error.message(), kMessageBytes);
  put_text(writer, error.hint(), kHintBytes);
  put_text(writer, joined_contexts(error), kContextBytes);
}

Status ErrorRecord::decode(ByteReader& reader, std::optional<Error>& out) {
  const auto code = reader.get<std::uint8_t>();
  const auto scope = reader.get<std::uint8_t>();
  const auto domain = reader.get<std::uint8_t>();
  const auto reserved = reader.get<std::uint8_t>();
  const auto native = reader.get<std::int32_t>();
  const auto origin = reader.get<std::int32_t>();
  ORIEL_TRY(std::string message, get_text(reader, kMessageBytes));
  ORIEL_TRY(std::string hint, get_text(reader, kHintBytes));
  ORIEL_TRY(std::string context, get_text(reader, kContextBytes));
  if (!in_range(code, ErrorCode::cuda, ErrorCode::aborted) ||
      !in_range(scope, Scope::request, Scope::process) ||
      !in_range(domain, NativeDomain::none, NativeDomain::cuda_runtime) || reserved != 0 ||
      origin < -1) {
    return Error(ErrorCode::remote,
                 fmt::format("a peer's error record is malformed (code {}, scope {}, domain {}, "
                             "rank {})",
                             code, scope, domain, origin));
  }
  Error error(static_cast<ErrorCode>(code), std::move(message));
  error = std::move(error)
              .with_scope(static_cast<Scope>(scope))
              .with_native(static_cast<NativeDomain>(domain), native)
              .with_origin(origin)
              .with_hint(std::move(hint));
  if (!context.empty()) error = std::move(error).with_context(std::move(context));
  out = std::move(error);
  return {};
}

VoteRecord::VoteRecord(int world_rank, const Status& mine, std::span<const AgreedField> fields) {
  if (!mine.ok()) {
    failed_rank_ = world_rank;
    error_ = Error(mine.error()).with_origin(world_rank);
  }
  for (const AgreedField& field : fields) {
    const Extreme here = {.value = field.value, .rank = world_rank};
    ranges_.push_back({.least = here, .greatest = here});
  }
}

void VoteRecord::encode(ByteWriter& writer) const {
  writer.put(failed_rank_).put(static_cast<std::uint32_t>(ranges_.size()));
  // Pads to the same size without an error, so the size of a message does not depend on errors.
  if (error_) {
    ErrorRecord::encode(writer, *error_);
  } else {
    writer.put_raw(Bytes(ErrorRecord::kEncodedBytes));
  }
  for (const Range& range : ranges_) {
    writer.put(range.least.value).put(range.least.rank);
    writer.put(range.greatest.value).put(range.greatest.rank);
  }
}

Result<VoteRecord> VoteRecord::decode(ByteReader& reader) {
  VoteRecord record;
  record.failed_rank_ = reader.get<std::int32_t>();
  const auto count = reader.get<std::uint32_t>();
  ByteReader error_reader(reader.get_raw(ErrorRecord::kEncodedBytes));
  if (!reader.good() || record.failed_rank_ < -1 || count > kMaxFields) {
    return Error(ErrorCode::remote,
                 fmt::format("a peer's vote record is malformed (rank {}, {} fields, at most {})",
                             record.failed_rank_, count, kMaxFields));
  }
  if (record.failed_rank_ >= 0) {
    ORIEL_CHECK(ErrorRecord::decode(error_reader, record.error_));
  }
  for (std::uint32_t i = 0; i < count; ++i) {
    Range range;
    for (Extreme* extreme : {&range.least, &range.greatest}) {
      extreme->value = reader.get<std::uint64_t>();
      extreme->rank = reader.get<std::int32_t>();
      if (extreme->rank < 0) {
        return Error(ErrorCode::remote,
                     fmt::format("a peer's vote record is malformed: field {} is of rank {}", i,
                                 extreme->rank));
      }
    }
    record.ranges_.push_back(range);
  }
  ORIEL_CHECK(reader.finish("a peer's vote record"));
  return record;
}

/// Orders errors: a failure of the reporting rank itself precedes a report of another rank's
/// failure.
std::pair<bool, std::int32_t> VoteRecord::precedence() const {
  return {error_->origin_rank() != failed_rank_, failed_rank_};
}

Status VoteRecord::merge(const VoteRecord& other) {
  const bool failed = failed_rank_ >= 0 || other.failed_rank_ >= 0;
  if (ranges_.size() != other.ranges_.size()) {
    if (!failed) {
      return Error(ErrorCode::invalid_usage,
                   fmt::format("ranks agree on different numbers of fields: {} here, {} elsewhere",
                               ranges_.size(), other.ranges_.size()))
          .with_hint("use the same version of Oriel on every rank");
    }
    ranges_.clear();
  }
  if (other.failed_rank_ >= 0 && (failed_rank_ < 0 || other.precedence() < precedence())) {
    error_ = other.error_;
    failed_rank_ = other.failed_rank_;
  }
  for (std::size_t i = 0; i < ranges_.size(); ++i) {
    Extreme& least = ranges_[i].least;
    Extreme& greatest = ranges_[i].greatest;
    const Range& theirs = other.ranges_[i];
    if (theirs.least.value < least.value ||
        (theirs.least.value == least.value && theirs.least.rank < least.rank)) {
      least = theirs.least;
    }
    if (theirs.greatest.value > greatest.value ||
        (theirs.greatest.value == greatest.value && theirs.greatest.rank < greatest.rank)) {
      greatest = theirs.greatest;
    }
  }
  return {};
}

Status VoteRecord::outcome(std::span<const AgreedField> fields) const {
  if (error_) {
    // Encodes and decodes once more, so that the origin's own copy is cut like all others.
    ByteWriter writer;
    ErrorRecord::encode(writer, *error_);
    const Bytes bytes = writer.take();
    ByteReader reader(bytes);
    std::optional<Error> same;
    ORIEL_CHECK(ErrorRecord::decode(reader, same));
    return std::move(*same);
  }
  for (std::size_t i = 0; i < ranges_.size(); ++i) {
    Extreme first = ranges_[i].least;
    Extreme second = ranges_[i].greatest;
    if (first.value == second.value) continue;
    if (first.rank > second.rank) std::swap(first, second);
    return Error(ErrorCode::invalid_usage,
                 fmt::format("{} differs: {} on rank {}, {} on rank {}", fields[i].name,
                             text_of(fields[i], first.value), first.rank,
                             text_of(fields[i], second.value), second.rank))
        .with_origin(second.rank)
        .with_hint("give every rank the same arguments and settings, and the same Oriel");
  }
  return {};
}

}  // namespace oriel::boot
