// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "base/fd.hpp"

namespace oriel {

/// Descriptor that a process reserves while it has or starts communicators. If a rank finds no
/// other descriptor for its start, it uses this one to report the failure to the other ranks. One
/// for the whole process. Thread-safe.
class SpareDescriptor {
 public:
  /// Returns the process's spare descriptor, shared by its holders. Empty if none is available.
  static std::shared_ptr<SpareDescriptor> hold();

  explicit SpareDescriptor(OwnedFd fd) : fd_(std::move(fd)) {}

  /// Closes the spare descriptor while alive, so that the caller can open another. Afterwards the
  /// spare is reopened if possible.
  class Release {
   public:
    Release();
    ~Release();
    Release(const Release&) = delete;
    Release& operator=(const Release&) = delete;

   private:
    std::shared_ptr<SpareDescriptor> spare_;  // null if the process has none
  };

 private:
  OwnedFd fd_;
};

}  // namespace oriel
