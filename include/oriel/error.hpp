// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "oriel/api.hpp"

/// How Oriel reports failure: every fallible call returns a Result, which holds a value or an
/// Error. Nothing here throws (but for memory exhaustion) and nothing prints.
/// Thread safety: as for std::string; distinct objects may be used by distinct threads.
namespace oriel {

/// What kind of failure it was. Each maps to one value of ncclResult_t.
enum class ErrorCode : std::uint8_t {
  cuda = 1,              ///< the CUDA driver or runtime refused a call
  system = 2,            ///< the operating system refused a call
  internal = 3,          ///< an invariant of ours does not hold: a bug in Oriel
  invalid_argument = 4,  ///< one argument is wrong on its own
  invalid_usage = 5,     ///< the call does not fit the state, or ranks disagree
  remote = 6,            ///< another rank failed, died or aborted
  timeout = 7,           ///< a deadline passed
  aborted = 8,           ///< this communicator was aborted by its user
};

/// The largest thing that can no longer be used after the error.
enum class Scope : std::uint8_t { request, window, communicator, process };

/// The layer whose status number `NativeStatus::value` is.
enum class NativeDomain : std::uint8_t { none, os_errno, cuda_driver, cuda_runtime };

struct NativeStatus {
  NativeDomain domain = NativeDomain::none;
  int value = 0;
};

/// One failure: what happened first, on which rank, and how it looked to each layer above.
class [[nodiscard]] ORIEL_API Error {
 public:
  Error(ErrorCode code, std::string message);

  Error(Error&&) noexcept = default;
  Error& operator=(Error&&) noexcept = default;
  Error(const Error& other);
  Error& operator=(const Error& other);
  ~Error() = default;

  ErrorCode code() const { return detail_->code; }
  Scope scope() const { return detail_->scope; }
  /// World rank on which the error arose, or -1 where no communicator was involved yet.
  int origin_rank() const { return detail_->origin_rank; }
  NativeStatus native() const { return detail_->native; }
  /// The first cause, in words.
  const std::string& message() const { return detail_->message; }
  /// What the user can do about it; may be empty.
  const std::string& hint() const { return detail_->hint; }
  /// What each layer was doing when the cause reached it, innermost first.
  const std::vector<std::string>& contexts() const { return detail_->contexts; }

  Error&& with_scope(Scope scope) &&;
  /// Sets the origin rank unless one is set already: the first to know is the one who is right.
  Error&& with_origin(int rank) &&;
  Error&& with_native(NativeDomain domain, int value) &&;
  Error&& with_hint(std::string hint) &&;
  /// Adds what the caller was doing, as in "mapping window 3 of rank 2".
  Error&& with_context(std::string context) &&;

  /// Everything on one line: contexts from the outside in, the cause, its native status, the rank,
  /// the hint.
  std::string to_string() const;

 private:
  struct Detail {
    ErrorCode code;
    Scope scope = Scope::request;
    int origin_rank = -1;
    NativeStatus native;
    std::string message;
    std::string hint;
    std::vector<std::string> contexts;
  };
  std::unique_ptr<Detail> detail_;  // one pointer, so that a Result of success stays small
};

/// A short name such as "invalid argument".
ORIEL_API const char* to_string(ErrorCode code);
ORIEL_API const char* to_string(Scope scope);

/// A value of type T, or the Error that says why there is none.
template <typename T>
class [[nodiscard]] Result {
 public:
  using value_type = T;
  Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}      // NOLINT: implicit
  Result(Error error) : state_(std::in_place_index<1>, std::move(error)) {}  // NOLINT: implicit

  bool ok() const { return state_.index() == 0; }
  explicit operator bool() const { return ok(); }

  /// Requires ok().
  T& value() & { return *std::get_if<0>(&state_); }
  const T& value() const& { return *std::get_if<0>(&state_); }
  T&& value() && { return std::move(*std::get_if<0>(&state_)); }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T* operator->() { return std::get_if<0>(&state_); }
  const T* operator->() const { return std::get_if<0>(&state_); }

  /// Requires !ok().
  Error& error() & { return *std::get_if<1>(&state_); }
  const Error& error() const& { return *std::get_if<1>(&state_); }
  Error&& error() && { return std::move(*std::get_if<1>(&state_)); }

 private:
  std::variant<T, Error> state_;
};

/// Success, or an Error.
template <>
class [[nodiscard]] Result<void> {
 public:
  using value_type = void;
  Result() = default;
  Result(Error error) : error_(std::move(error)) {}  // NOLINT: implicit

  bool ok() const { return !error_.has_value(); }
  explicit operator bool() const { return ok(); }
  Error& error() & { return *error_; }
  const Error& error() const& { return *error_; }
  Error&& error() && { return std::move(*error_); }

 private:
  std::optional<Error> error_;
};

using Status = Result<void>;

}  // namespace oriel
