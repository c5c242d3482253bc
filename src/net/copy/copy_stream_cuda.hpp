// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>

#include "oriel/error.hpp"

#include "base/cuda_scope.hpp"
#include "net/copy/copy_stream.hpp"
#include "net/copy/word_batch_cuda.hpp"

namespace oriel::net {

/// Checks that the GPU has what a CopyStream needs; the error says what is missing.
Status check_copy_streams(CUdevice device);

/// CopyStream on a CUDA stream of this process. Driver calls are made in relaxed capture mode.
/// Calls between create() and the destructor do not wait for the GPU. The driver's own locks may
/// block them while the application frees memory or the like.
///
/// Words are collected and go to the driver with the next copy or signal(), or when the batch is
/// full.
class CudaCopyStream final : public CopyStream {
 public:
  static Result<std::unique_ptr<CudaCopyStream>> create(CUdevice device, std::size_t slot_bytes,
                                                        std::uint32_t slots);
  ~CudaCopyStream() override;
  CudaCopyStream(const CudaCopyStream&) = delete;
  CudaCopyStream& operator=(const CudaCopyStream&) = delete;

  bool has_capacity() override { return true; }
  Status load(std::uint32_t slot, const std::byte* from, std::size_t count) override;
  Status store(std::byte* to, std::uint32_t slot, ByteView from) override;
  Status copy(std::byte* to, const std::byte* from, std::size_t count) override;
  Status write(std::byte* to, std::uint64_t value, std::size_t bytes) override;
  Status signal(std::uint64_t count) override;
  std::uint64_t signalled() const override;
  Status poll() override;
  bool settle() noexcept override;

 private:
  explicit CudaCopyStream(PrimaryContext context) : context_(std::move(context)) {}
  Status prepare(std::size_t slot_bytes, std::uint32_t slots);
  Status submit_words();
  bool ends() noexcept;
  /// Submits the collected words, then makes the calls in the GPU's context.
  template <class Calls>
  Status enqueue(const char* what, const Calls& calls);

  PrimaryContext context_;
  CUstream stream_ = nullptr;
  WordBatch words_;
  bool is_settled_ = false;
  std::byte* pinned_ = nullptr;  // signalled()'s count, then the slots
  CUdeviceptr count_address_ = 0;
};

}  // namespace oriel::net
