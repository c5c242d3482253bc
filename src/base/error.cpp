// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "oriel/error.hpp"

#include <cstring>

namespace oriel {

Error::Error(ErrorCode code, std::string message) : detail_(std::make_unique<Detail>()) {
  detail_->code = code;
  detail_->message = std::move(message);
}

Error::Error(const Error& other) : detail_(std::make_unique<Detail>(*other.detail_)) {}

Error& Error::operator=(const Error& other) {
  if (this != &other) detail_ = std::make_unique<Detail>(*other.detail_);
  return *this;
}

Error&& Error::with_scope(Scope scope) && {
  detail_->scope = scope;
  return std::move(*this);
}

Error&& Error::with_origin(int rank) && {
  if (detail_->origin_rank < 0) detail_->origin_rank = rank;
  return std::move(*this);
}

Error&& Error::with_native(NativeDomain domain, int value) && {
  detail_->native = NativeStatus{domain, value};
  return std::move(*this);
}

Error&& Error::with_hint(std::string hint) && {
  detail_->hint = std::move(hint);
  return std::move(*this);
}

Error&& Error::with_context(std::string context) && {
  detail_->contexts.push_back(std::move(context));
  return std::move(*this);
}

namespace {

std::string describe(NativeStatus native) {
  switch (native.domain) {
    case NativeDomain::none:
      return {};
    case NativeDomain::os_errno: {
      const char* name = ::strerrorname_np(native.value);
      const char* text = ::strerrordesc_np(native.value);
      return std::string(" (") +
             (name != nullptr ? name : "errno " + std::to_string(native.value)) +
             (text != nullptr ? std::string(": ") + text : std::string()) + ")";
    }
    case NativeDomain::cuda_driver:
      return " (CUresult " + std::to_string(native.value) + ")";
    case NativeDomain::cuda_runtime:
      return " (cudaError " + std::to_string(native.value) + ")";
  }
  return {};
}

}  // namespace

std::string Error::to_string() const {
  std::string text;
  if (detail_->origin_rank >= 0) text += "rank " + std::to_string(detail_->origin_rank) + ": ";
  for (auto it = detail_->contexts.rbegin(); it != detail_->contexts.rend(); ++it) {
    text += *it + ": ";
  }
  text += detail_->message + describe(detail_->native);
  if (!detail_->hint.empty()) text += "; hint: " + detail_->hint;
  return text;
}

const char* to_string(ErrorCode code) {
  switch (code) {
    case ErrorCode::cuda:
      return "CUDA error";
    case ErrorCode::system:
      return "system error";
    case ErrorCode::internal:
      return "internal error";
    case ErrorCode::invalid_argument:
      return "invalid argument";
    case ErrorCode::invalid_usage:
      return "invalid usage";
    case ErrorCode::remote:
      return "remote error";
    case ErrorCode::timeout:
      return "timeout";
    case ErrorCode::aborted:
      return "aborted";
  }
  return "unknown error";
}

const char* to_string(Scope scope) {
  switch (scope) {
    case Scope::request:
      return "request";
    case Scope::window:
      return "window";
    case Scope::communicator:
      return "communicator";
    case Scope::process:
      return "process";
  }
  return "unknown scope";
}

}  // namespace oriel
