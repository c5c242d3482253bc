// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include "support/cuda/fake_cuda.hpp"
#include "window/memory/memory_cuda.hpp"

namespace oriel::window {

/// Memory of device 0 on a model of the driver. Checks at its end that nothing wrong was done and
/// that nothing is left.
class ModelMemory {
 public:
  explicit ModelMemory(test::FakeCuda::Options options = {}) : fake_(options), first_(open(0)) {}
  ~ModelMemory() {
    first_.reset();
    CHECK(fake_.violations() == std::vector<std::string>());
    CHECK(fake_.held() == test::FakeCuda::Held());
    CHECK(fake_.context_depth() == 0);
    CHECK(fake_.capture_mode() == CU_STREAM_CAPTURE_MODE_GLOBAL);
  }
  ModelMemory(const ModelMemory&) = delete;
  ModelMemory& operator=(const ModelMemory&) = delete;

  /// A memory of `device`, to be destroyed before this.
  static std::unique_ptr<Memory> open(int device) {
    Result<std::unique_ptr<Memory>> made = make_cuda_memory(device);
    REQUIRE(made.ok());
    return std::move(made).value();
  }
  Memory& memory() { return *first_; }
  test::FakeCuda& driver() { return fake_; }

 private:
  test::FakeCuda fake_;
  std::unique_ptr<Memory> first_;
};

}  // namespace oriel::window
