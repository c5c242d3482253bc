// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include "support/cuda/fake_cuda.hpp"

namespace oriel::test {

/// Driver model that fails its test if, when destroyed, a violation was noted or anything is still
/// held.
class CheckedCuda : public FakeCuda {
 public:
  using FakeCuda::FakeCuda;
  ~CheckedCuda() {
    CHECK(violations() == std::vector<std::string>());
    CHECK(held() == Held());
    CHECK(context_depth() == 0);
    CHECK(capture_mode() == CU_STREAM_CAPTURE_MODE_GLOBAL);
  }
};

}  // namespace oriel::test
