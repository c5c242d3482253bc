// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "topo/cuda_facts.hpp"

namespace oriel::topo {

SourceReport add_cuda_facts(Machine&) {
  return {"CUDA", SourceReport::Outcome::skipped, "this was built without CUDA"};
}

}  // namespace oriel::topo
