// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "base/fd.hpp"

namespace oriel {

/// A descriptor that a process holds back while it has communicators or starts one: a rank that
/// finds no other left for its start still has one over which to tell the other ranks so. One for
/// the whole process. Thread-safe.
class SpareDescriptor {
 public:
  /// The process's one; it lives as long as somebody has it. Holds nothing if none is to be had.
  static std::shared_ptr<SpareDescriptor> hold();

  explicit SpareDescriptor(OwnedFd fd) : fd_(std::move(fd)) {}

  /// While it lives the spare descriptor is closed, for whoever needs one now; then held again, if
  /// there is one.
  class Loan {
   public:
    Loan();
    ~Loan();
    Loan(const Loan&) = delete;
    Loan& operator=(const Loan&) = delete;

   private:
    std::shared_ptr<SpareDescriptor> lender_;  // null where the process has none
  };

 private:
  OwnedFd fd_;
};

}  // namespace oriel
