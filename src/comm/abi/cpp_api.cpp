// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <cstring>
#include <new>
#include <utility>
#include <variant>

#include <fmt/format.h>

#include "nccl.h"
#include "oriel/communicator.hpp"

#include "base/fork.hpp"
#include "base/log.hpp"
#include "base/try.hpp"
#include "comm/abi/api_entry.hpp"
#include "comm/communicator/device_comm_memory.hpp"
#include "comm/device/device.hpp"
#include "comm/group/comm_entry.hpp"
#include "comm/group/end_jobs.hpp"
#include "comm/group/group_jobs.hpp"

/// C++ interface: each function that returns a Status or Result is a guarded call into the modules.
/// Communicator::abort() and async_error() are not guarded.
namespace oriel {
namespace {

/// Runs `body` and adds the name of the call to its error. Lets no std::exception out, except from
/// building the error's own message. If memory runs out, aborts `comm`, if given.
template <class Body>
auto guard(const char* call, const Body& body, ncclComm_t comm = nullptr) -> decltype(body()) {
  try {
    auto result = body();
    if (result.ok()) return result;
    return std::move(result).error().with_context(call);
  } catch (const std::bad_alloc&) {
    comm::end_without_memory(comm);
    return Error(ErrorCode::system, "out of memory").with_context(call);
  } catch (const std::exception& exception) {
    return Error(ErrorCode::internal, exception.what()).with_context(call);
  }
}

void warn_unless_ok(const Status& status) {
  if (!status.ok()) Log().warn("{}", status.error().to_string());
}

Status check_ctas(const char* name, int value) {
  if (value >= 0 && value <= 1024) return {};
  return Error(ErrorCode::invalid_argument, fmt::format("{} is {}", name, value))
      .with_hint("0 (no limit) to 1024 are allowed");
}

Result<comm::CommunicatorOptions> read_options(const CommunicatorOptions& given) {
  ORIEL_CHECK(check_ctas("min_ctas", given.min_ctas));
  ORIEL_CHECK(check_ctas("max_ctas", given.max_ctas));
  if (given.max_ctas > 0 && given.min_ctas > given.max_ctas) {
    return Error(ErrorCode::invalid_argument,
                 fmt::format("min_ctas, {}, is above max_ctas, {}", given.min_ctas, given.max_ctas))
        .with_hint("leave one of them 0, or make min_ctas at most max_ctas");
  }
  comm::CommunicatorOptions options;
  options.min_ctas = given.min_ctas;
  options.max_ctas = given.max_ctas;
  options.name = given.name;
  return options;
}

}  // namespace

Result<UniqueId> UniqueId::create() {
  return guard("oriel::UniqueId::create", []() -> Result<UniqueId> {
    ORIEL_TRY(const auto made, comm::make_unique_id());
    UniqueId id;
    id.bytes = made.encode();
    return id;
  });
}

// Buffer

struct Buffer::Impl {
  comm::Device* device;  // never destroyed
  void* data;
  std::size_t bytes;
  ~Impl() { warn_unless_ok(device->memory().free_when_unused(data)); }
};

Buffer::Buffer() = default;
Buffer::Buffer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Buffer::Buffer(Buffer&& other) noexcept = default;
Buffer& Buffer::operator=(Buffer&& other) noexcept = default;
Buffer::~Buffer() = default;

void* Buffer::data() const {
  return impl_ != nullptr ? impl_->data : nullptr;
}
std::size_t Buffer::bytes() const {
  return impl_ != nullptr ? impl_->bytes : 0;
}

// Window

struct Window::Impl {
  std::shared_ptr<comm::Communicator> communicator;
  MemoryRange range;
  ncclWindow_t handle;
  device::WindowView view;
  std::uint32_t forks = fork_count();  // fork count of the registering process

  ~Impl() { warn_unless_ok(deregister()); }
  Status deregister() {
    view = {};
    const ncclWindow_t ended = std::exchange(handle, nullptr);
    const bool ours = forks == fork_count();
    return ours && ended != nullptr ? communicator->deregister_window(ended) : Status();
  }
};

Window::Window(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Window::Window(Window&& other) noexcept = default;
Window& Window::operator=(Window&& other) noexcept = default;
Window::~Window() = default;

void* Window::data() const {
  return impl_ != nullptr ? impl_->range.data : nullptr;
}
std::size_t Window::bytes() const {
  return impl_ != nullptr ? impl_->range.bytes : 0;
}
device::WindowView Window::view() const {
  return impl_ != nullptr ? impl_->view : device::WindowView{};
}
ncclWindow_vidmem* Window::handle() const {
  return impl_ != nullptr ? impl_->handle : nullptr;
}

Status Window::close() {
  if (impl_ == nullptr) return {};
  return guard("oriel::Window::close", [&] { return impl_->deregister(); });
}

// DeviceComm

struct DeviceComm::Impl {
  comm::DeviceCommMemory memory;
};

DeviceComm::DeviceComm(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
DeviceComm::DeviceComm(DeviceComm&& other) noexcept = default;
DeviceComm& DeviceComm::operator=(DeviceComm&& other) noexcept = default;
DeviceComm::~DeviceComm() = default;

const device::CommView& DeviceComm::view() const {
  return impl_->memory.view();
}

// Communicator

struct Communicator::Impl {
  std::shared_ptr<comm::CommEntry> entry;            // null once closed
  std::shared_ptr<comm::Communicator> communicator;  // null once closed
  ncclComm_t handle = nullptr;                       // null once closed
  bool owned = false;
  int rank = 0;
  int size = 1;
  int cuda_device = -1;
  std::vector<int> lsa_team;

  ~Impl() { warn_unless_ok(close()); }

  static Result<Communicator> make(std::unique_ptr<Impl> impl) {
    ORIEL_TRY(impl->communicator, impl->entry->communicator());
    impl->rank = impl->entry->rank();
    impl->size = impl->entry->size();
    impl->cuda_device = impl->entry->device();
    impl->lsa_team = impl->communicator->team();
    return Communicator(std::move(impl));
  }
  Status close() {
    communicator.reset();
    entry.reset();
    const ncclComm_t ended = std::exchange(handle, nullptr);
    return owned && ended != nullptr ? comm::destroy_communicator(ended) : Status();
  }
  Status check_open() const {
    if (communicator == nullptr) {
      return Error(ErrorCode::invalid_usage, "the communicator has been closed")
          .with_scope(Scope::communicator)
          .with_hint("make no call after close()");
    }
    if (entry->inherited()) return comm::inherited_error(rank);
    return {};
  }
};

Communicator::Communicator(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Communicator::Communicator(Communicator&& other) noexcept = default;
Communicator& Communicator::operator=(Communicator&& other) noexcept = default;
Communicator::~Communicator() = default;

Result<Communicator> Communicator::init(const UniqueId& id, int rank, int size,
                                        const CommunicatorOptions& options) {
  return guard("oriel::Communicator::init", [&]() -> Result<Communicator> {
    ORIEL_TRY(const auto decoded, boot::UniqueId::decode(id.bytes));
    ORIEL_CHECK(comm::check_rank(rank, size));
    auto impl = std::make_unique<Impl>();
    comm::GroupJobs jobs;
    jobs.push_back(comm::make_init_job(decoded, rank, size, read_options(options), true,
                                       comm::current_device()));
    comm::PendingHandle& handle = std::get<comm::InitJob>(jobs.front()).handle;
    impl->entry = handle.entry();
    impl->owned = true;
    handle.show(&impl->handle);
    bool in_progress = false;
    // If the start fails, impl->handle is null again.
    ORIEL_CHECK(comm::run_jobs(jobs, in_progress));
    return Impl::make(std::move(impl));
  });
}

Result<Communicator> Communicator::borrow(ncclComm* handle) {
  return guard("oriel::Communicator::borrow", [&]() -> Result<Communicator> {
    auto impl = std::make_unique<Impl>();
    ORIEL_TRY(impl->entry, comm::find_entry(handle));
    impl->handle = handle;
    return Impl::make(std::move(impl));
  });
}

int Communicator::rank() const {
  return impl_->rank;
}
int Communicator::size() const {
  return impl_->size;
}
std::vector<int> Communicator::lsa_team() const {
  return impl_->lsa_team;
}
int Communicator::cuda_device() const {
  return impl_->cuda_device;
}
ncclComm* Communicator::handle() const {
  return impl_->handle;
}

Result<Buffer> Communicator::allocate(std::size_t bytes) const {
  return guard("oriel::Communicator::allocate", [&]() -> Result<Buffer> {
    ORIEL_CHECK(impl_->check_open());
    comm::Device& device = impl_->communicator->device();
    ORIEL_TRY(void* const data, device.memory().allocate(bytes));
    return Buffer(std::unique_ptr<Buffer::Impl>(new Buffer::Impl{&device, data, bytes}));
  });
}

namespace {

std::vector<window::WindowRequest> requests_for(std::span<const MemoryRange> ranges) {
  std::vector<window::WindowRequest> requests;
  for (const MemoryRange& range : ranges) {
    window::WindowRequest request;
    request.pointer = range.data;
    request.bytes = range.bytes;
    request.flags = NCCL_WIN_COLL_SYMMETRIC;
    requests.push_back(std::move(request));
  }
  return requests;
}

}  // namespace

Result<std::vector<Window>> Communicator::register_windows(std::span<const MemoryRange> ranges) {
  const auto call = [&]() -> Result<std::vector<Window>> {
    ORIEL_CHECK(impl_->check_open());
    std::vector<Window> windows;
    for (const MemoryRange& range : ranges) {
      windows.push_back(Window(std::unique_ptr<Window::Impl>(
          new Window::Impl{impl_->communicator, range, nullptr, {}})));
    }
    ORIEL_TRY(auto loop, comm::make_loop(*impl_->communicator));
    ORIEL_TRY(const auto handles,
              loop.run(impl_->communicator->register_windows(loop, requests_for(ranges))));
    for (std::size_t i = 0; i < windows.size(); ++i) {
      windows[i].impl_->handle = static_cast<ncclWindow_t>(handles[i]);
      windows[i].impl_->view = impl_->communicator->window_view(handles[i]);
    }
    return windows;
  };
  return guard("oriel::Communicator::register_windows", call, impl_->handle);
}

Result<Window> Communicator::register_window(MemoryRange range) {
  auto windows = register_windows(std::span(&range, 1));
  if (!windows.ok()) return std::move(windows).error();
  return std::move(windows.value().front());
}

Result<Window> Communicator::register_window(const Buffer& buffer) {
  return register_window({buffer.data(), buffer.bytes()});
}

namespace {

/// Checks the arguments that all collectives share. Returns a request that lacks the collective and
/// its operation.
template <class Arguments>
Result<comm::CollectiveRequest> read_collective(const Arguments& arguments) {
  if (static_cast<int>(arguments.type) >= kDataTypeCount) {
    return Error(ErrorCode::invalid_argument,
                 fmt::format("type is {}, but types go from 0 to {}",
                             static_cast<int>(arguments.type), kDataTypeCount - 1))
        .with_hint("pass a value of oriel::DataType, such as DataType::f32");
  }
  comm::CollectiveRequest request;
  request.input = arguments.input;
  request.output = arguments.output;
  request.count = arguments.count;
  request.type = arguments.type;
  request.stream = arguments.stream;
  return request;
}

template <class Arguments>
Result<comm::CollectiveRequest> read_reduction(const Arguments& arguments) {
  ORIEL_TRY(comm::CollectiveRequest request, read_collective(arguments));
  if (static_cast<int>(arguments.op) >= kReduceOpCount) {
    return Error(ErrorCode::invalid_argument,
                 fmt::format("op is {}, but operations go from 0 to {}",
                             static_cast<int>(arguments.op), kReduceOpCount - 1))
        .with_hint("pass a value of oriel::ReduceOp, such as ReduceOp::sum");
  }
  const bool scaled = arguments.op == ReduceOp::premul_sum;
  if (scaled != (arguments.scalar != nullptr)) {
    return Error(ErrorCode::invalid_argument,
                 scaled ? "scalar is null, but op is premul_sum"
                        : fmt::format("scalar is given, but op is {}", name_of(arguments.op)))
        .with_hint("premul_sum needs a scalar on the host, other operations none");
  }
  request.op = arguments.op;
  if (scaled) std::memcpy(&request.scalar_bits, arguments.scalar, size_of(arguments.type));
  return request;
}

}  // namespace

Status Communicator::all_reduce(const AllReduceArguments& arguments) {
  const auto call = [&]() -> Status {
    ORIEL_CHECK(impl_->check_open());
    ORIEL_TRY(const auto request, read_reduction(arguments));
    return impl_->communicator->calls().collective(request);
  };
  return guard("oriel::Communicator::all_reduce", call, impl_->handle);
}

Status Communicator::all_gather(const AllGatherArguments& arguments) {
  const auto call = [&]() -> Status {
    ORIEL_CHECK(impl_->check_open());
    ORIEL_TRY(auto request, read_collective(arguments));
    request.collective = kernels::Collective::all_gather;
    return impl_->communicator->calls().collective(request);
  };
  return guard("oriel::Communicator::all_gather", call, impl_->handle);
}

Status Communicator::reduce_scatter(const ReduceScatterArguments& arguments) {
  const auto call = [&]() -> Status {
    ORIEL_CHECK(impl_->check_open());
    ORIEL_TRY(auto request, read_reduction(arguments));
    request.collective = kernels::Collective::reduce_scatter;
    return impl_->communicator->calls().collective(request);
  };
  return guard("oriel::Communicator::reduce_scatter", call, impl_->handle);
}

Result<DeviceComm> Communicator::device_comm(const DeviceCommOptions& options) {
  const auto call = [&]() -> Result<DeviceComm> {
    ORIEL_CHECK(impl_->check_open());
    ORIEL_TRY(auto loop, comm::make_loop(*impl_->communicator));
    ORIEL_TRY(auto memory, loop.run(impl_->communicator->make_device_comm(
                               loop, comm::DeviceCommRequest{options.device_version,
                                                             options.barrier_slots, options.world,
                                                             options.signals, options.counters})));
    return DeviceComm(std::unique_ptr<DeviceComm::Impl>(new DeviceComm::Impl{std::move(memory)}));
  };
  return guard("oriel::Communicator::device_comm", call, impl_->handle);
}

void Communicator::abort() {
  if (impl_->entry == nullptr || impl_->entry->inherited()) return;
  impl_->entry->abort(
      Error(ErrorCode::aborted, "Communicator::abort was called").with_origin(impl_->rank));
}

std::optional<Error> Communicator::async_error() const {
  if (impl_->entry == nullptr) return std::nullopt;
  if (impl_->entry->inherited()) return comm::inherited_error(impl_->rank);
  return impl_->entry->async_error();
}

Status Communicator::close() {
  return guard("oriel::Communicator::close", [&] { return impl_->close(); });
}

}  // namespace oriel
