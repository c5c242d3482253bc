// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "net/fabric/fabric_provider.hpp"

#include <array>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "base/try.hpp"
#include "net/fabric/signal_keeper.hpp"

namespace oriel::net {
namespace {

// Registration modes that work with plain addresses.
constexpr int kMemoryModes = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
constexpr std::uint64_t kModes = FI_CONTEXT | FI_CONTEXT2;

bool speaks_ip(std::string_view provider) {
  for (const std::string_view kind : {"tcp", "net", "sockets", "udp"}) {
    if (provider.substr(0, provider.find(';')) == kind) return true;
  }
  return false;
}

// Copies by malloc(), because the library frees it by free().
template <typename T>
T* copy_for_library(const T* from, std::size_t bytes) {
  void* const made = std::malloc(bytes);  // NOLINT(cppcoreguidelines-no-malloc)
  if (made != nullptr) std::memcpy(made, from, bytes);
  return static_cast<T*>(made);
}

Result<FabricInfo> make_hints(const FabricTable& table, const std::string& provider,
                              const boot::SocketAddress& source, std::uint64_t caps) {
  FabricInfo hints(table, table.fi_dupinfo(nullptr));
  if (hints.get() == nullptr) return fabric_error(table, "fi_dupinfo", -FI_ENOMEM);
  hints->caps = FI_MSG | caps;
  hints->mode = kModes;
  hints->ep_attr->type = FI_EP_RDM;
  hints->tx_attr->msg_order = FI_ORDER_SAS;
  hints->rx_attr->msg_order = FI_ORDER_SAS;
  hints->domain_attr->mr_mode = kMemoryModes;
  hints->domain_attr->threading = FI_THREAD_DOMAIN;
  // Manual progress: otherwise some providers start a thread of their own.
  hints->domain_attr->control_progress = FI_PROGRESS_MANUAL;
  hints->domain_attr->data_progress = FI_PROGRESS_MANUAL;
  hints->fabric_attr->prov_name = copy_for_library(provider.c_str(), provider.size() + 1);
  if (hints->fabric_attr->prov_name == nullptr) return fabric_error(table, "malloc", -FI_ENOMEM);
  if (!source.valid()) return hints;
  sockaddr_storage native{};
  const socklen_t length = source.to_native(native);
  hints->src_addr = copy_for_library(&native, sizeof native);
  if (hints->src_addr == nullptr) return fabric_error(table, "malloc", -FI_ENOMEM);
  hints->src_addrlen = length;
  hints->addr_format = native.ss_family == AF_INET ? FI_SOCKADDR_IN : FI_SOCKADDR_IN6;
  return hints;
}

// Returns why the provider cannot be used, or nothing.
std::optional<std::string> lack_of(const fi_info& info, const FabricRequest& request) {
  if (info.fabric_attr == nullptr || info.fabric_attr->prov_name == nullptr) return "has no name";
  if ((info.caps & FI_MSG) == 0 || info.ep_attr->type != FI_EP_RDM) return "has no such endpoint";
  if ((info.tx_attr->msg_order & FI_ORDER_SAS) == 0) return "does not keep messages in order";
  if ((info.domain_attr->mr_mode & ~kMemoryModes) != 0 || (info.mode & ~kModes) != 0) {
    return fmt::format("wants what Oriel does not do (modes {:#x}, {:#x})",
                       info.domain_attr->mr_mode, info.mode);
  }
  if (info.ep_attr->max_msg_size < request.message_bytes) {
    return fmt::format("takes messages of at most {} bytes, not of {}", info.ep_attr->max_msg_size,
                       request.message_bytes);
  }
  // A name may be that of one layer. shm is taken only if the request names it.
  const std::string_view name = info.fabric_attr->prov_name;
  if (name.starts_with("shm") && !request.provider.starts_with("shm")) return "is not wanted";
  return std::nullopt;
}

Result<FabricInfo> ask_for(const FabricTable& table, const std::string& provider,
                           const boot::SocketAddress& source, const FabricRequest& request,
                           std::uint64_t caps) {
  ORIEL_TRY(const FabricInfo hints, make_hints(table, provider, source, caps));
  fi_info* list = nullptr;
  const int status =
      table.fi_getinfo(fabric_version(table), nullptr, nullptr, 0, hints.get(), &list);
  std::string why = fmt::format("libfabric does not list {} for this host", provider);
  if (status != 0 && status != -FI_ENODATA) return fabric_error(table, "fi_getinfo", status);
  const FabricInfo found(table, list);
  for (const fi_info* info = list; info != nullptr; info = info->next) {
    const auto lack = lack_of(*info, request);
    if (lack.has_value()) {
      why = *lack;
      continue;
    }
    FabricInfo taken(table, table.fi_dupinfo(info));
    if (taken.get() == nullptr) return fabric_error(table, "fi_dupinfo", -FI_ENOMEM);
    return taken;
  }
  return Error(ErrorCode::invalid_usage, why)
      .with_hint("name a provider that fi_info lists with ORIEL_FABRIC_PROVIDER");
}

Result<FabricInfo> ask(const FabricTable& table, const std::string& provider,
                       const FabricRequest& request) {
  boot::SocketAddress source;
  const bool by_ip = speaks_ip(provider);
  if (by_ip || (provider.starts_with("verbs") && !request.socket.ifname.empty())) {
    ORIEL_TRY(source, boot::choose_interface(request.socket));
  }
  Result<FabricInfo> found = ask_for(table, provider, source, request, FabricEndpoint::kReadCaps);
  const bool is_lacking = !found.ok() && found.error().code() == ErrorCode::invalid_usage;
  // Retries without reads of peers' memory, since messages are enough.
  return is_lacking ? ask_for(table, provider, source, request, 0) : std::move(found);
}

}  // namespace

void discover_fabrics(const FabricTable& table) {
  const SignalKeeper keeper(reinterpret_cast<const void*>(table.fi_getinfo));
  static_cast<void>(ask_for(table, "tcp;ofi_rxm", {}, {}, 0));
}

Result<FabricInfo> choose_fabric(const FabricTable& table, const FabricRequest& request) {
  // Rejects exclusion: libfabric would return the first other provider, which may differ between
  // hosts.
  if (request.provider.starts_with('^')) {
    return Error(ErrorCode::invalid_usage,
                 fmt::format("ORIEL_FABRIC_PROVIDER is \"{}\", which libfabric takes for all "
                             "providers but that; it has to name the one to be used",
                             request.provider))
        .with_hint("name one, as in ORIEL_FABRIC_PROVIDER=tcp, or none");
  }
  std::vector<std::string> asked = {"efa", "verbs;ofi_rxm", "tcp", "tcp;ofi_rxm"};
  if (!request.provider.empty()) asked = {request.provider};
  std::optional<SignalKeeper> keeper;
  if (!request.provider.starts_with("shm")) {
    keeper.emplace(reinterpret_cast<const void*>(table.fi_getinfo));
  }
  std::string said;
  NativeStatus last;
  bool is_lacking = true;  // false: a provider failed, rather than being absent or unfit
  for (const std::string& provider : asked) {
    Result<FabricInfo> found = ask(table, provider, request);
    if (found.ok()) return found;
    is_lacking = is_lacking && found.error().code() == ErrorCode::invalid_usage;
    if (found.error().code() != ErrorCode::invalid_usage) last = found.error().native();
    said += fmt::format("{}{}: {}", said.empty() ? "" : "; ", provider, found.error().message());
  }
  return Error(is_lacking ? ErrorCode::invalid_usage : ErrorCode::system,
               fmt::format("libfabric has no provider that could carry messages ({})", said))
      .with_hint(
          "install a package libfabric1 that has one, or name another with ORIEL_FABRIC_PROVIDER, "
          "or an interface with ORIEL_SOCKET_IFNAME")
      .with_native(last.domain, last.value);
}

}  // namespace oriel::net
