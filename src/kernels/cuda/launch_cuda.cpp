// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/launch_cuda.hpp"

#include <array>

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include "kernels/algorithms/family.hpp"
#include "kernels/plan/kernel_set.hpp"

namespace oriel::kernels {
namespace {

const KernelSet& kernels_for(DataType type) {
  static const std::array<KernelSet, kDataTypeCount> sets = {
      detail::kernel_set_i8(),   detail::kernel_set_u8(),   detail::kernel_set_i32(),
      detail::kernel_set_u32(),  detail::kernel_set_i64(),  detail::kernel_set_u64(),
      detail::kernel_set_f16(),  detail::kernel_set_f32(),  detail::kernel_set_f64(),
      detail::kernel_set_bf16(), detail::kernel_set_e4m3(), detail::kernel_set_e5m2()};
  return sets[static_cast<std::size_t>(type)];
}

const void* kernel_for(const Plan& plan, const AllReduceArguments& arguments) {
  // An empty call, of any collective, is a one-shot without CTAs that move data.
  if (plan.algorithm == Algorithm::stream && !reduces(arguments.collective)) {
    return detail::copy_stream_kernel_for(arguments.collective);
  }
  const auto algorithm = static_cast<std::size_t>(plan.algorithm);
  const auto family = static_cast<std::size_t>(family_of(arguments.op));
  const auto variant = static_cast<std::size_t>(variant_for(arguments.ranks));
  return kernels_for(arguments.type).kernel[algorithm][family][variant];
}

Error runtime_error(const std::string& what, cudaError_t status) {
  return Error(ErrorCode::cuda, fmt::format("{} failed: {}", what, cudaGetErrorString(status)))
      .with_native(NativeDomain::cuda_runtime, static_cast<int>(status));
}

}  // namespace

Status launch_all_reduce(const Plan& plan, const AllReduceArguments& arguments,
                         CUstream_st* stream) {
  const void* kernel = kernel_for(plan, arguments);

  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(plan.ctas) + kSignatureCtas);
  const auto sub_ctas = static_cast<unsigned>(plan.sub_ctas);
  config.blockDim = dim3(static_cast<unsigned>(plan.threads) / sub_ctas, sub_ctas);
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = 1;
  void* parameters[] = {const_cast<AllReduceArguments*>(&arguments)};
  const cudaError_t status = cudaLaunchKernelExC(&config, kernel, parameters);
  if (status != cudaSuccess) {
    return runtime_error(
        fmt::format("launching {} of {} with {} x {} threads", name_of(plan.algorithm),
                    name_of(arguments.type), plan.ctas, plan.threads),
        status);
  }
  return {};
}

Status launch_hierarchy(const HierarchyArguments& arguments, CUstream_st* stream) {
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(arguments.plan.ctas));
  config.blockDim = dim3(kMaxThreads);
  config.stream = stream;
  void* parameters[] = {const_cast<HierarchyArguments*>(&arguments)};
  const cudaError_t status =
      cudaLaunchKernelExC(&config, kernels_for(arguments.type).hierarchy, parameters);
  if (status == cudaSuccess) return {};
  return runtime_error(fmt::format("launching an {} of {} among teams with {} x {} threads",
                                   name_of(arguments.collective), name_of(arguments.type),
                                   arguments.plan.ctas, kMaxThreads),
                       status);
}

Status launch_exchange(const ExchangeArguments& arguments, CUstream_st* stream) {
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(arguments.ctas));
  config.blockDim = dim3(kMaxThreads);
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = 1;
  void* parameters[] = {const_cast<ExchangeArguments*>(&arguments)};
  const cudaError_t status =
      cudaLaunchKernelExC(&config, detail::exchange_kernel_for(arguments.form), parameters);
  if (status == cudaSuccess) return {};
  return runtime_error(fmt::format("launching an exchange of {} messages with {} x {} threads",
                                   arguments.messages, arguments.ctas, kMaxThreads),
                       status);
}

Status load_exchanges() {
  for (const ExchangeForm form : {ExchangeForm::any, ExchangeForm::near, ExchangeForm::packets}) {
    cudaFuncAttributes attributes{};
    const cudaError_t status =
        cudaFuncGetAttributes(&attributes, detail::exchange_kernel_for(form));
    if (status != cudaSuccess) return runtime_error("loading exchanges", status);
  }
  return {};
}

Status load_hierarchy(const HierarchyArguments& arguments) {
  cudaFuncAttributes attributes{};
  const cudaError_t status =
      cudaFuncGetAttributes(&attributes, kernels_for(arguments.type).hierarchy);
  if (status == cudaSuccess) return {};
  return runtime_error(
      fmt::format("loading collectives of {} among teams", name_of(arguments.type)), status);
}

Status load_all_reduce(const Plan& plan, const AllReduceArguments& arguments) {
  cudaFuncAttributes attributes{};
  const cudaError_t status = cudaFuncGetAttributes(&attributes, kernel_for(plan, arguments));
  if (status == cudaSuccess) return {};
  return runtime_error(
      fmt::format("loading {} of {}", name_of(plan.algorithm), name_of(arguments.type)), status);
}

}  // namespace oriel::kernels
