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

/// Error reporting of Oriel: every fallible call returns a Result, which holds a value or an Error.
/// Nothing here throws (except on memory exhaustion) and nothing prints. Thread safety is that of
/// std::string: distinct objects may be used by distinct threads.
namespace oriel {

/// Kind of a failure. Each kind maps to one value of ncclResult_t: timeout to ncclSystemError,
/// aborted to ncclInvalidUsage, the others to the value of the same name.
enum class ErrorCode : std::uint8_t {
  cuda = 1,              ///< the CUDA driver or runtime refused a call
  system = 2,            ///< the operating system refused a call
  internal = 3,          ///< an invariant of Oriel does not hold: a bug in Oriel
  invalid_argument = 4,  ///< one argument is invalid by itself
  invalid_usage = 5,     ///< the call does not fit the state, or ranks disagree
  remote = 6,            ///< another rank failed, died or aborted
  timeout = 7,           ///< a deadline passed
  aborted = 8,           ///< this communicator was aborted by its user
};

/// The largest object that is unusable after the error.
enum class Scope : std::uint8_t { request, window, communicator, process };

/// Layer that defines the status number `NativeStatus::value`.
enum class NativeDomain : std::uint8_t { none, os_errno, cuda_driver, cuda_runtime };

/// Status number of the call that failed below Oriel; `none` if there was no such call.
struct NativeStatus {
  NativeDomain domain = NativeDomain::none;
  int value = 0;
};

/// One failure: the first cause, the rank on which it arose, and the context that each layer added.
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
  /// Returns the world rank on which the error arose, or -1 if no layer has set it.
  int origin_rank() const { return detail_->origin_rank; }
  NativeStatus native() const { return detail_->native; }
  /// Returns the first cause as text.
  const std::string& message() const { return detail_->message; }
  /// Returns advice for the user; may be empty.
  const std::string& hint() const { return detail_->hint; }
  /// Returns the operation of each layer at the time of the error, innermost first.
  const std::vector<std::string>& contexts() const { return detail_->contexts; }

  /// Sets the scope.
  Error&& with_scope(Scope scope) &&;
  /// Sets the origin rank unless it is already set: the innermost layer knows the origin best.
  Error&& with_origin(int rank) &&;
  Error&& with_native(NativeDomain domain, int value) &&;
  Error&& with_hint(std::string hint) &&;
  /// Appends the caller's operation, such as "mapping window 3 of rank 2".
  Error&& with_context(std::string context) &&;

  /// Returns one line: the rank, contexts from the outermost to the innermost, the cause, its
  /// native status and the hint.
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
  std::unique_ptr<Detail> detail_;  // one pointer, so that a successful Result stays small
};

/// Returns a short name such as "invalid argument".
ORIEL_API const char* to_string(ErrorCode code);
ORIEL_API const char* to_string(Scope scope);

/// A value of type T, or the Error that explains its absence.
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
