// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include "nccl.h"
#include "oriel/error.hpp"

#include "perf/library.hpp"
#include "perf/options.hpp"
#include "perf/worker.hpp"

namespace oriel::perf {

/// Arguments of one call.
struct CallArguments {
  const std::byte* input = nullptr;
  std::byte* output = nullptr;
  std::size_t count = 0;
  ncclDataType_t type = ncclFloat;
  ncclRedOp_t op = ncclSum;
  ncclComm_t comm = nullptr;
  cudaStream_t stream = nullptr;
};

/// Makes calls of the measured collective for one rank.
class CollectiveCall {
 public:
  CollectiveCall(const Library& library, Collective collective, int root, const Place& place)
      : library_(library), collective_(collective), root_(root), place_(place) {}

  /// Fails if the library lacks the functions of this collective.
  Status check_present() const;
  Status make(const CallArguments& call) const;

  /// Returns the number of blocks in this rank's input, if its larger buffer has `blocks`.
  int input_blocks(int blocks) const { return sends_blocks(collective_) ? blocks : 1; }
  /// Returns false for non-root ranks of reduce and gather, which get no result.
  bool has_output() const;
  /// Returns the rank whose input ends up in this output block. Not for reductions.
  int source_of(int block) const;
  /// Returns where this rank's block begins in a buffer of blocks.
  std::byte* own_block(std::byte* buffer, std::size_t block_bytes) const {
    return buffer + static_cast<std::size_t>(place_.rank) * block_bytes;
  }

 private:
  bool is_present() const;
  Status make_rooted(const CallArguments& call) const;
  Status send_and_receive(const CallArguments& call) const;

  const Library& library_;
  Collective collective_;
  int root_;
  Place place_;
};

}  // namespace oriel::perf
