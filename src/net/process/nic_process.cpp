// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "net/process/nic_process.hpp"

#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <system_error>
#include <utility>

#include <dlfcn.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include "base/system_table.hpp"
#include "base/try.hpp"
#include "net/process/nic_process_socket.hpp"

namespace oriel::net {
namespace {

constexpr std::chrono::seconds kAnswerMost{20};
constexpr std::chrono::seconds kEndMost{3};
constexpr int kChildSocket = 3;

/// File actions and attributes for posix_spawn; freed when destroyed.
class SpawnPlan {
 public:
  static Result<SpawnPlan> make(int socket) {
    SpawnPlan plan;
    int status = ::posix_spawn_file_actions_init(&plan.actions_);
    if (status != 0) return system_error("preparing a process", status);
    plan.has_actions_ = true;
    status = ::posix_spawnattr_init(&plan.attributes_);
    if (status != 0) return system_error("preparing a process", status);
    plan.has_attributes_ = true;
    status = plan.fill(socket);
    if (status != 0) return system_error("preparing a process", status);
    return plan;
  }
  SpawnPlan(SpawnPlan&& other) noexcept
      : actions_(other.actions_),
        attributes_(other.attributes_),
        has_actions_(std::exchange(other.has_actions_, false)),
        has_attributes_(std::exchange(other.has_attributes_, false)) {}
  SpawnPlan& operator=(SpawnPlan&&) = delete;
  ~SpawnPlan() {
    if (has_actions_) ::posix_spawn_file_actions_destroy(&actions_);
    if (has_attributes_) ::posix_spawnattr_destroy(&attributes_);
  }
  const posix_spawn_file_actions_t* actions() const { return &actions_; }
  const posix_spawnattr_t* attributes() const { return &attributes_; }

 private:
  SpawnPlan() = default;
  /// Passes only the socket and standard error, where a log may go. Resets signals to those of a
  /// fresh process. Sets a new process group, so that a terminal does not signal the process.
  int fill(int socket) {
    int status = ::posix_spawn_file_actions_adddup2(&actions_, socket, kChildSocket);
    if (status == 0) status = ::posix_spawn_file_actions_addopen(&actions_, 0, "/dev/null", 0, 0);
    if (status == 0) status = ::posix_spawn_file_actions_adddup2(&actions_, 0, 1);
    if (status == 0) {
      status = ::posix_spawn_file_actions_addclosefrom_np(&actions_, kChildSocket + 1);
    }
    sigset_t none, all;
    ::sigemptyset(&none);
    ::sigfillset(&all);
    if (status == 0) status = ::posix_spawnattr_setsigmask(&attributes_, &none);
    if (status == 0) status = ::posix_spawnattr_setsigdefault(&attributes_, &all);
    if (status == 0) status = ::posix_spawnattr_setpgroup(&attributes_, 0);
    constexpr short kFlags = POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETPGROUP;
    return status == 0 ? ::posix_spawnattr_setflags(&attributes_, kFlags) : status;
  }
  posix_spawn_file_actions_t actions_{};
  posix_spawnattr_t attributes_{};
  bool has_actions_ = false;
  bool has_attributes_ = false;
};

/// Returns the file that contains this code.
std::filesystem::path own_file() {
  Dl_info info{};
  std::error_code error;
  std::filesystem::path file;
  if (::dladdr(reinterpret_cast<const void*>(&own_file), &info) != 0 && info.dli_fname != nullptr) {
    file = info.dli_fname;
  }
  // For a program, dladdr may give the name by which it was called.
  if (!file.is_absolute()) file = "/proc/self/exe";
  const std::filesystem::path real = std::filesystem::canonical(file, error);
  return error ? file : real;
}

bool is_program(const std::filesystem::path& path) {
  std::error_code error;
  return std::filesystem::is_regular_file(path, error) && ::access(path.c_str(), X_OK) == 0;
}

Error process_error(std::string text) {
  return Error(ErrorCode::system, "a software NIC's process " + std::move(text));
}

}  // namespace

Result<std::string> NicProcess::find_program(const std::string& named) {
  if (!named.empty()) {
    if (is_program(named)) return named;
    return Error(ErrorCode::invalid_usage,
                 fmt::format("ORIEL_NIC_PROGRAM is \"{}\", which is no executable file", named))
        .with_hint("set it to the path of oriel-nic, or unset it");
  }
  const std::filesystem::path folder = own_file().parent_path();
  std::string tried;
  for (const char* const way : {".", "../bin", "../../bin", "../libexec/oriel"}) {
    const std::filesystem::path path = (folder / way / "oriel-nic").lexically_normal();
    if (is_program(path)) return path.string();
    tried += (tried.empty() ? "" : ", ") + path.string();
  }
  return Error(ErrorCode::system, "there is no program oriel-nic; looked for " + tried)
      .with_hint("set ORIEL_NIC_PROGRAM to its path");
}

/// Starts the program; returns this process's end of the socket.
Result<OwnedFd> NicProcess::spawn(const std::string& program) {
  std::array<int, 2> ends{-1, -1};
  if (sys().socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()) != 0) {
    return system_error("making a pair of unix sockets");
  }
  OwnedFd own(ends[0]), other(ends[1]);
  // If the number were the same, an older C library would close the descriptor on exec.
  if (other.get() == kChildSocket) {
    other = OwnedFd(sys().fcntl_int(other.get(), F_DUPFD_CLOEXEC, kChildSocket + 1));
    if (!other) return system_error("duplicating a unix socket");
  }
  ORIEL_TRY(const SpawnPlan plan, SpawnPlan::make(other.get()));
  std::string name = "oriel-nic", mode = "serve";
  std::array<char*, 3> arguments{name.data(), mode.data(), nullptr};
  pid_t pid = 0;
  if (sys().spawn(&pid, program.c_str(), plan.actions(), plan.attributes(), arguments.data(),
                  environ) != 0) {
    return system_error(fmt::format("starting {}", program));
  }
  // The started process exits at once, after a fork.
  int status = 0;
  pid_t ended = 0;
  do {
    ended = sys().waitpid(pid, &status, 0);
  } while (ended < 0 && errno == EINTR);
  // Other code of this process may have reaped the child. If so, the socket shows a failure.
  if (ended == pid && (!WIFEXITED(status) || WEXITSTATUS(status) != 0)) {
    return process_error(fmt::format("could not go on: {} ended with status {:#x}", program,
                                     static_cast<unsigned>(status)));
  }
  return own;
}

Result<std::shared_ptr<NicProcess>> NicProcess::start(const Options& options) {
  ORIEL_TRY(OwnedFd socket, spawn(options.program));
  return join(std::move(socket), options);
}

Result<std::shared_ptr<NicProcess>> NicProcess::join(OwnedFd socket, const Options& options) {
  OwnedFd wake_event(sys().eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake_event) return system_error("making an eventfd");
  std::shared_ptr<NicProcess> made(new NicProcess(std::move(socket), std::move(wake_event)));
  ORIEL_CHECK(show_senders(made->socket_));
  nic_request::Hello hello;
  hello.gpu = options.gpu;
  for (const int cpu : options.cpus) {
    const auto bit = static_cast<std::size_t>(cpu);
    if (bit / 64 < hello.cpus.size()) hello.cpus[bit / 64] |= std::uint64_t{1} << bit % 64;
  }
  ORIEL_CHECK(made->send(hello, &made->wake_event_, Deadline::after(kAnswerMost)));
  return made;
}

NicProcess::~NicProcess() {
  end();
}

Status NicProcess::send(const NicRequest& request, const OwnedFd* descriptor, Deadline deadline) {
  ORIEL_CHECK(error_);
  const Bytes message = encode(request);
  error_ = send_nic_message(socket_, message, descriptor, deadline);
  return error_;
}

Status NicProcess::give_up(Error why) {
  error_ = std::move(why);
  return error_;
}

Status NicProcess::take_answer(Deadline deadline) {
  ORIEL_CHECK(error_);
  NicMessage message;
  for (;;) {
    auto received = receive_nic_message(socket_);
    if (!received.ok()) return give_up(std::move(received).error());
    message = std::move(received).value();
    if (message.outcome != NicMessage::Outcome::none) break;
    error_ = await_nic_message(socket_, deadline);
    ORIEL_CHECK(error_);
  }
  if (message.outcome == NicMessage::Outcome::closed) return give_up(process_error("has ended"));
  const auto answer = decode_nic_answer(message.bytes);
  if (!answer.ok()) return give_up(answer.error());
  if (pid_ == 0) pid_ = message.sender;
  // In tests, a thread of this process may serve instead. It ends when its socket is closed.
  if (!pidfd_ && pid_ > 0 && pid_ != ::getpid()) pidfd_ = OwnedFd(sys().pidfd_open(pid_, 0));
  if (!answer->failed) return {};
  const ErrorCode code =
      answer->native.domain == NativeDomain::cuda_driver ? ErrorCode::cuda : ErrorCode::system;
  return Error(code, "a software NIC's process says: " + answer->text)
      .with_native(answer->native.domain, answer->native.value);
}

Status NicProcess::ask(const NicRequest& request, const OwnedFd* descriptor) {
  const Deadline deadline = Deadline::after(kAnswerMost);
  ORIEL_CHECK(send(request, descriptor, deadline));
  wake();
  return take_answer(deadline);
}

bool NicProcess::has_answered() const {
  pollfd entry{socket_.get(), POLLIN, 0};
  const std::lock_guard lock(mutex_);
  return has_hello_answer_ || !error_.ok() || sys().poll(&entry, 1, 0) != 0;
}

Status NicProcess::await_ready(Deadline deadline) {
  const std::lock_guard lock(mutex_);
  if (has_hello_answer_) return error_;
  Status answer = take_answer(deadline);
  has_hello_answer_ = true;
  // After a failed hello the process ends by itself.
  if (!answer.ok() && error_.ok()) error_ = answer;
  return answer;
}

Status NicProcess::show(const std::byte* base, std::size_t bytes, AllocationHandle handle) {
  const std::lock_guard lock(mutex_);
  {
    const std::lock_guard known_lock(known_mutex_);
    const auto found = known_.find(base);
    if (found != known_.end()) {
      if (found->second.bytes != bytes) {
        return Error(ErrorCode::internal,
                     fmt::format("an allocation of {} bytes lies where a software NIC's process "
                                 "knows one of {}",
                                 bytes, found->second.bytes));
      }
      ++found->second.holders;
      return {};
    }
  }
  nic_request::Add add;
  add.region = ++last_number_;
  add.bytes = bytes;
  const auto* const descriptor = std::get_if<OwnedFd>(&handle);
  if (descriptor == nullptr) {
    add.by_fabric = true;
    add.fabric = std::get<FabricBytes>(handle);
  }
  Status added = ask(add, descriptor);
  if (!added.ok()) {
    return std::move(added).error().with_context(
        fmt::format("showing {} bytes of a GPU to a software NIC's process", bytes));
  }
  const std::lock_guard known_lock(known_mutex_);
  known_.emplace(base, Known{bytes, add.region, 1});
  return {};
}

void NicProcess::hide(const std::byte* base) noexcept {
  const std::lock_guard lock(mutex_);
  nic_request::Remove remove;
  {
    const std::lock_guard known_lock(known_mutex_);
    const auto found = known_.find(base);
    if (found == known_.end() || --found->second.holders > 0) return;
    remove.region = found->second.region;
    known_.erase(found);
  }
  // A process that does not answer releases the memory when it ends.
  static_cast<void>(ask(remove, nullptr));
}

NicProcess::Place NicProcess::find(const std::byte* at) const {
  const std::lock_guard lock(known_mutex_);
  auto found = known_.upper_bound(at);
  if (found == known_.begin()) return {};
  --found;
  const auto offset = static_cast<std::size_t>(at - found->first);
  if (offset >= found->second.bytes) return {};
  return {found->second.region, offset, found->second.bytes - offset};
}

Status NicProcess::poll() {
  pollfd entry{socket_.get(), 0, 0};  // no events requested: poll() always reports a hang-up
  if (sys().poll(&entry, 1, 0) <= 0 || (entry.revents & (POLLHUP | POLLERR)) == 0) return {};
  return process_error(fmt::format("({}) has ended", pid()));
}

void NicProcess::wake() const {
  raise_event(wake_event_);
}

void NicProcess::end() noexcept {
  const std::lock_guard lock(mutex_);
  if (error_.ok()) error_ = process_error("has been ended");
  static_cast<void>(sys().shutdown(socket_.get(), SHUT_RDWR));
  wake();
  if (!pidfd_) return;
  pollfd entry{pidfd_.get(), POLLIN, 0};
  const auto most = static_cast<int>(std::chrono::milliseconds(kEndMost).count());
  if (sys().poll(&entry, 1, most) <= 0) {
    static_cast<void>(sys().pidfd_send_signal(pidfd_.get(), SIGKILL, nullptr, 0));
    static_cast<void>(sys().poll(&entry, 1, most));
  }
  pidfd_.reset();
  // Reaps the process if it is a child after all: this process may be a container's init, or adopt
  // orphans.
  static_cast<void>(sys().waitpid(pid_, nullptr, WNOHANG));
}

pid_t NicProcess::pid() const {
  const std::lock_guard lock(mutex_);
  return pid_;
}

}  // namespace oriel::net
