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
/// Nothing here throws (except on memory exhaustion) and nothing prints. All functions are local
/// and do not block. Distinct objects may be used by distinct threads, as with std::string.
///
/// Example: returns the value of a call, or prints the error and ends the program.
/// ```cpp
/// #include <cstdio>
/// #include <cstdlib>
/// template <class T>
/// T value_or_exit(oriel::Result<T> result) {
///   if (result.ok()) return std::move(result).value();
///   std::fprintf(stderr, "%s\n", result.error().to_string().c_str());
///   std::exit(result.error().code() == oriel::ErrorCode::timeout ? 2 : 1);
/// }
/// ```
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
  NativeDomain domain = NativeDomain::none;  ///< layer of the call
  int value = 0;                             ///< its status number, such as an errno
};

/// One failure: the first cause, the rank on which it arose, and the context that each layer added.
/// A moved-from object may only be destroyed or assigned to.
class [[nodiscard]] ORIEL_API Error {
 public:
  /// Creates an error of scope `request`, without origin rank, native status, hint and contexts.
  Error(ErrorCode code, std::string message);

  Error(Error&&) noexcept = default;             ///< moves; does not allocate
  Error& operator=(Error&&) noexcept = default;  ///< moves; does not allocate
  Error(const Error& other);                     ///< copies all parts
  Error& operator=(const Error& other);          ///< copies all parts
  ~Error() = default;

  ErrorCode code() const { return detail_->code; }  ///< kind of the failure
  Scope scope() const { return detail_->scope; }    ///< largest object that is unusable
  /// Returns the world rank on which the error arose, or -1 if no layer has set it.
  int origin_rank() const { return detail_->origin_rank; }
  /// Returns the status number of the failed call below Oriel.
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
  /// Sets the status number of the failed call below Oriel.
  Error&& with_native(NativeDomain domain, int value) &&;
  /// Sets the advice for the user; replaces earlier advice.
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
/// Returns a short name such as "communicator".
ORIEL_API const char* to_string(Scope scope);

/// A value of type T, or the Error that explains its absence. Access to the value requires ok().
/// Access to the error requires !ok(). Neither is checked.
template <typename T>
class [[nodiscard]] Result {
 public:
  using value_type = T;  ///< type of the value
  /// Holds a value. Implicit, so that a function can return a T.
  Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}  // NOLINT: implicit
  /// Holds an error. Implicit, so that a function can return an Error.
  Result(Error error) : state_(std::in_place_index<1>, std::move(error)) {}  // NOLINT: implicit

  bool ok() const { return state_.index() == 0; }  ///< true if there is a value
  explicit operator bool() const { return ok(); }  ///< equals ok()

  T& value() & { return *std::get_if<0>(&state_); }                ///< requires ok()
  const T& value() const& { return *std::get_if<0>(&state_); }     ///< requires ok()
  T&& value() && { return std::move(*std::get_if<0>(&state_)); }   ///< requires ok()
  T& operator*() & { return value(); }                             ///< requires ok()
  const T& operator*() const& { return value(); }                  ///< requires ok()
  T* operator->() { return std::get_if<0>(&state_); }              ///< requires ok()
  const T* operator->() const { return std::get_if<0>(&state_); }  ///< requires ok()

  Error& error() & { return *std::get_if<1>(&state_); }               ///< requires !ok()
  const Error& error() const& { return *std::get_if<1>(&state_); }    ///< requires !ok()
  Error&& error() && { return std::move(*std::get_if<1>(&state_)); }  ///< requires !ok()

 private:
  std::variant<T, Error> state_;
};

/// Success, or an Error. Access to the error requires !ok(), without a check.
template <>
class [[nodiscard]] Result<void> {
 public:
  using value_type = void;  ///< there is no value
  Result() = default;       ///< success
  /// Holds an error. Implicit, so that a function can return an Error.
  Result(Error error) : error_(std::move(error)) {}  // NOLINT: implicit

  bool ok() const { return !error_.has_value(); }    ///< true if there is no error
  explicit operator bool() const { return ok(); }    ///< equals ok()
  Error& error() & { return *error_; }               ///< requires !ok()
  const Error& error() const& { return *error_; }    ///< requires !ok()
  Error&& error() && { return std::move(*error_); }  ///< requires !ok()

 private:
  std::optional<Error> error_;
};

/// Result of a call that returns no value.
using Status = Result<void>;

}  // namespace oriel
