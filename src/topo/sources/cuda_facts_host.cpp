// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "topo/sources/cuda_facts.hpp"

namespace oriel::topo {

CudaFacts read_cuda_facts(Machine&) {
  const char* const why = "this was built without CUDA";
  return {{"CUDA", SourceReport::Outcome::skipped, why},
          Error(ErrorCode::invalid_usage, why).with_hint("build with -DORIEL_CUDA=ON")};
}

}  // namespace oriel::topo
