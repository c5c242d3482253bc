// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "oriel/device/reduce.hpp"
#include "oriel/device/scalar.hpp"

#include "kernels/cuda/gpu_arithmetic.hpp"

namespace oriel::test {
namespace {

constexpr int kThreads = 256;

template <typename T, ReduceOp op>
__global__ void reduce_kernel(const T* inputs, const T* scalars, int n, int n_ranks,
                              std::size_t count, T* out) {
  const std::size_t i = std::size_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= count) return;
  const device::Reduction<T, op> reduction{n_ranks};
  const auto leaf = [&](int k) {
    return reduction.load(inputs[static_cast<std::size_t>(k) * count + i], scalars[k]);
  };
  const auto combine = [&](auto a, auto b) { return reduction.combine(a, b); };
  out[i] = reduction.finish(n == 2   ? device::fold_tree_fixed<2>(leaf, combine)
                            : n == 4 ? device::fold_tree_fixed<4>(leaf, combine)
                                     : device::fold_tree<8>(n, leaf, combine));
}

template <typename T>
__global__ void narrow_kernel(const float* in, std::size_t count, T* single, T* paired) {
  const std::size_t i = 2 * (std::size_t{blockIdx.x} * kThreads + threadIdx.x);
  if (i >= count) return;
  single[i] = T(in[i]);
  single[i + 1] = T(in[i + 1]);
  T pair[2];
  device::narrow_pair(in[i], in[i + 1], pair);
  paired[i] = pair[0];
  paired[i + 1] = pair[1];
}

template <typename T>
__global__ void widen_kernel(const T* in, std::size_t count, float* single, float* paired) {
  const std::size_t i = 2 * (std::size_t{blockIdx.x} * kThreads + threadIdx.x);
  if (i >= count) return;
  const T pair[2] = {in[i], in[i + 1]};
  single[i] = static_cast<float>(pair[0]);
  single[i + 1] = static_cast<float>(pair[1]);
  device::widen_pair(pair, paired[i], paired[i + 1]);
}

/// Device memory with copies from and to the host. `status` keeps the first CUDA error.
template <typename T>
class DeviceArray {
 public:
  explicit DeviceArray(std::size_t count) : bytes_(count * sizeof(T)) {
    status = cudaMalloc(reinterpret_cast<void**>(&data_), bytes_);
  }
  ~DeviceArray() { cudaFree(data_); }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;
  T* data() const { return data_; }
  void fill(const void* from) {
    if (status == cudaSuccess) status = cudaMemcpy(data_, from, bytes_, cudaMemcpyHostToDevice);
  }
  void read(void* to) {
    if (status == cudaSuccess) status = cudaMemcpy(to, data_, bytes_, cudaMemcpyDeviceToHost);
  }
  cudaError_t status;

 private:
  std::size_t bytes_;
  T* data_ = nullptr;
};

int first_error(std::initializer_list<cudaError_t> errors) {
  for (const cudaError_t error : errors) {
    if (error != cudaSuccess) return static_cast<int>(error);
  }
  return static_cast<int>(cudaSuccess);
}

unsigned blocks_for(std::size_t threads) {
  return static_cast<unsigned>((threads + kThreads - 1) / kThreads);
}

template <typename T, ReduceOp op>
int run_reduce(const void* inputs, const void* scalars, int n, int n_ranks, std::size_t count,
               void* out) {
  DeviceArray<T> in(static_cast<std::size_t>(n) * count);
  DeviceArray<T> factors(static_cast<std::size_t>(n));
  DeviceArray<T> results(count);
  in.fill(inputs);
  factors.fill(scalars);
  if (const int error = first_error({in.status, factors.status, results.status})) return error;
  reduce_kernel<T, op><<<blocks_for(count), kThreads>>>(in.data(), factors.data(), n, n_ranks,
                                                        count, results.data());
  const cudaError_t launched = cudaGetLastError();
  results.read(out);
  return first_error({launched, results.status});
}

template <typename T>
int run_reduce(ReduceOp op, const void* inputs, const void* scalars, int n, int n_ranks,
               std::size_t count, void* out) {
  switch (op) {
    case ReduceOp::sum:
      return run_reduce<T, ReduceOp::sum>(inputs, scalars, n, n_ranks, count, out);
    case ReduceOp::prod:
      return run_reduce<T, ReduceOp::prod>(inputs, scalars, n, n_ranks, count, out);
    case ReduceOp::max:
      return run_reduce<T, ReduceOp::max>(inputs, scalars, n, n_ranks, count, out);
    case ReduceOp::min:
      return run_reduce<T, ReduceOp::min>(inputs, scalars, n, n_ranks, count, out);
    case ReduceOp::avg:
      return run_reduce<T, ReduceOp::avg>(inputs, scalars, n, n_ranks, count, out);
    case ReduceOp::premul_sum:
      return run_reduce<T, ReduceOp::premul_sum>(inputs, scalars, n, n_ranks, count, out);
  }
  return static_cast<int>(cudaErrorInvalidValue);
}

template <typename T>
int run_narrow(const float* in, std::size_t count, void* single, void* paired) {
  DeviceArray<float> from(count);
  DeviceArray<T> one(count);
  DeviceArray<T> two(count);
  from.fill(in);
  if (const int error = first_error({from.status, one.status, two.status})) return error;
  narrow_kernel<T><<<blocks_for(count / 2), kThreads>>>(from.data(), count, one.data(), two.data());
  const cudaError_t launched = cudaGetLastError();
  one.read(single);
  two.read(paired);
  return first_error({launched, one.status, two.status});
}

template <typename T>
int run_widen(const void* in, std::size_t count, float* single, float* paired) {
  DeviceArray<T> from(count);
  DeviceArray<float> one(count);
  DeviceArray<float> two(count);
  from.fill(in);
  if (const int error = first_error({from.status, one.status, two.status})) return error;
  widen_kernel<T><<<blocks_for(count / 2), kThreads>>>(from.data(), count, one.data(), two.data());
  const cudaError_t launched = cudaGetLastError();
  one.read(single);
  two.read(paired);
  return first_error({launched, one.status, two.status});
}

}  // namespace

int gpu_reduce(DataType type, ReduceOp op, const void* inputs, const void* scalars, int n,
               int n_ranks, std::size_t count, void* out) {
#define ORIEL_CASE(name)                                                                         \
  case DataType::name:                                                                           \
    return run_reduce<device::ElementOf<DataType::name>>(op, inputs, scalars, n, n_ranks, count, \
                                                         out)
  switch (type) {
    ORIEL_CASE(i8);
    ORIEL_CASE(u8);
    ORIEL_CASE(i32);
    ORIEL_CASE(u32);
    ORIEL_CASE(i64);
    ORIEL_CASE(u64);
    ORIEL_CASE(f16);
    ORIEL_CASE(f32);
    ORIEL_CASE(f64);
    ORIEL_CASE(bf16);
    ORIEL_CASE(e4m3);
    ORIEL_CASE(e5m2);
  }
#undef ORIEL_CASE
  return static_cast<int>(cudaErrorInvalidValue);
}

int gpu_narrow(DataType type, const float* in, std::size_t count, void* single, void* paired) {
  switch (type) {
    case DataType::f16:
      return run_narrow<device::f16>(in, count, single, paired);
    case DataType::bf16:
      return run_narrow<device::bf16>(in, count, single, paired);
    case DataType::e4m3:
      return run_narrow<device::e4m3>(in, count, single, paired);
    case DataType::e5m2:
      return run_narrow<device::e5m2>(in, count, single, paired);
    default:
      return static_cast<int>(cudaErrorInvalidValue);
  }
}

int gpu_widen(DataType type, const void* in, std::size_t count, float* single, float* paired) {
  switch (type) {
    case DataType::f16:
      return run_widen<device::f16>(in, count, single, paired);
    case DataType::bf16:
      return run_widen<device::bf16>(in, count, single, paired);
    case DataType::e4m3:
      return run_widen<device::e4m3>(in, count, single, paired);
    case DataType::e5m2:
      return run_widen<device::e5m2>(in, count, single, paired);
    default:
      return static_cast<int>(cudaErrorInvalidValue);
  }
}

}  // namespace oriel::test
