// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include <catch2/catch.hpp>

#include "support/cuda/checked_cuda.hpp"
#include "window/memory/memory_cuda.hpp"

namespace oriel::window {

/// Memory of device 0 on a model of the driver.
class ModelMemory {
 public:
  explicit ModelMemory(test::FakeCuda::Options options = {}) : fake_(options), first_(open(0)) {}
  /// Opens a memory of `device`; destroy it before this object.
  static std::unique_ptr<Memory> open(int device) {
    Result<std::unique_ptr<Memory>> made = make_cuda_memory(device);
    REQUIRE(made.ok());
    return std::move(made).value();
  }
  Memory& memory() { return *first_; }
  test::FakeCuda& driver() { return fake_; }

 private:
  test::CheckedCuda fake_;
  std::unique_ptr<Memory> first_;
};

}  // namespace oriel::window
