// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "net/mlx5/fake_verbs.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <map>
#include <numeric>
#include <utility>

namespace oriel::net::test {
namespace {

FakeVerbs* fake = nullptr;

std::uint32_t number_at(const std::byte* from, std::size_t bytes) {
  std::uint64_t value = 0;
  for (std::size_t i = 0; i < bytes; ++i)
    value = value << 8 | std::to_integer<std::uint8_t>(from[i]);
  return static_cast<std::uint32_t>(value);
}

void put_number(Bytes& out, std::size_t at, std::size_t bytes, std::uint64_t value) {
  for (std::size_t i = 0; i < bytes; ++i) {
    out[at + i] = static_cast<std::byte>(value >> (8 * (bytes - 1 - i)));
  }
}

}  // namespace

/// Object given to a caller. Begins with the part that callers may read.
struct FakeVerbs::Object {
  union {
    VerbsRegion region;
    Mlx5Umem umem;
    Mlx5Uar uar;
  } seen{};
  std::string kind;
  int adapter = 0;
  std::uint32_t number = 0;
  std::vector<const void*> needs;
  void* address = nullptr;
  std::size_t bytes = 0;
  std::uint32_t elements = 0;  // CQ only
  bool collapsed = false;
  alignas(4096) std::array<std::uint64_t, 512> page{};  // UAR only
  bool is_uncached = false;                             // the one uncached UAR of its context
  int owners = 1;                                       // how often it was allocated
};

struct FakeVerbs::Access {
  using Call = FakeVerbs::Call;

  /// Records a call. Returns true if it must fail.
  static bool fails(const char* name, std::vector<std::uint64_t> arguments = {},
                    Bytes command = {}) {
    fake->calls.push_back({name, std::move(arguments), std::move(command)});
    if (++fake->counted != fake->fail_at) return false;
    fake->failed = name;
    errno = fake->status;
    return true;
  }
  static Object* find(const void* pointer, const std::string& kind, const char* call) {
    const auto found = fake->objects_.find(pointer);
    if (found == fake->objects_.end() || found->second->kind != kind) {
      fake->violations.push_back(std::string(call) + " on something that is no " + kind);
      return nullptr;
    }
    return found->second.get();
  }
  /// Records a call on an object of this kind. Returns null if the call must fail, or if there is
  /// no such object.
  static Object* called(const char* call, const void* on, const char* kind,
                        std::vector<std::uint64_t> arguments = {}, Bytes command = {}) {
    const bool fail = fails(call, std::move(arguments), std::move(command));
    Object* const object = find(on, kind, call);
    return fail ? nullptr : object;
  }
  static Object* make(const std::string& kind, int adapter, std::vector<const void*> needs) {
    auto object = std::make_unique<Object>();
    object->kind = kind;
    object->adapter = adapter;
    object->needs = std::move(needs);
    object->number = ++fake->next_number_;
    Object* raw = object.get();
    fake->objects_.emplace(raw, std::move(object));
    fake->made.push_back(kind);
    return raw;
  }
  static int release(const char* call, const void* pointer, const std::string& kind) {
    const bool reports = fails(call);
    Object* object = find(pointer, kind, call);
    if (object == nullptr) return EINVAL;
    if (--object->owners > 0) return reports ? fake->status : 0;
    for (const auto& [other, owner] : fake->objects_) {
      const auto& needs = owner->needs;
      if (std::find(needs.begin(), needs.end(), pointer) != needs.end()) {
        fake->violations.push_back(kind + " was destroyed before " + owner->kind);
      }
    }
    fake->destroyed.push_back(kind);
    if (kind == "QP") {
      const auto pair = fake->queue_pairs.find(key_of(object->adapter, object->number));
      if (fake->on_destroy) fake->on_destroy(pair->second);
      fake->queue_pairs.erase(pair);
    }
    if (kind == "region" && fake->on_deregister) {
      fake->on_deregister(object->adapter, object->seen.region.lkey);
    }
    fake->objects_.erase(pointer);
    return reports ? fake->status : 0;
  }
  static Object* numbered(const std::string& kind, const Object& context, std::uint32_t number) {
    for (const auto& [pointer, object] : fake->objects_) {
      const bool is_near = object->adapter == context.adapter;
      if (is_near && object->kind == kind && object->number == number) return object.get();
    }
    fake->violations.push_back("there is no " + kind + " " + std::to_string(number));
    return nullptr;
  }
  static const Adapter& adapter(const Object& object) {
    return fake->adapters[static_cast<std::size_t>(object.adapter)];
  }

  static VerbsDevice** get_device_list(int* count) {
    if (fake->on_list) fake->on_list();
    if (fails("ibv_get_device_list")) return nullptr;
    *count = static_cast<int>(fake->adapters.size());
    auto* made = new VerbsDevice*[fake->adapters.size() + 1];
    for (std::size_t i = 0; i < fake->adapters.size(); ++i) {
      made[i] = reinterpret_cast<VerbsDevice*>(&fake->adapters[i]);
    }
    return made;
  }
  static void free_device_list(VerbsDevice** list) { delete[] list; }
  static const Adapter* of(VerbsDevice* device) { return reinterpret_cast<const Adapter*>(device); }
  static const char* get_device_name(VerbsDevice* device) { return of(device)->name.c_str(); }
  static bool is_supported(VerbsDevice* device) { return of(device)->mlx5; }

  static VerbsContext* open_device(VerbsDevice* device, Mlx5ContextOptions* options) {
    if (fails("mlx5dv_open_device", {options->flags})) return nullptr;
    const auto which = static_cast<int>(of(device) - fake->adapters.data());
    return reinterpret_cast<VerbsContext*>(make("context", which, {}));
  }
  static int close_device(VerbsContext* context) {
    return release("ibv_close_device", context, "context");
  }
  static int query_port(VerbsContext* context, std::uint8_t port, VerbsPort* out) {
    const Object* object = called("ibv_query_port", context, "context", {port});
    if (object == nullptr) return fake->status;
    if (port != 1) return EINVAL;
    const Adapter& from = adapter(*object);
    out->state = from.port_state;
    out->link_layer = from.link_layer;
    out->mtu = from.mtu;
    out->lid = from.lid;
    out->flags = from.port_flags;
    out->gid_count = static_cast<std::int32_t>(from.gids.size());
    return 0;
  }
  static int query_gid(VerbsContext* context, std::uint32_t, std::uint32_t index, VerbsGid* out,
                       std::uint32_t, std::size_t bytes) {
    const Object* object = called("_ibv_query_gid_ex", context, "context", {index, bytes});
    if (object == nullptr) return fake->status;
    const Adapter& from = adapter(*object);
    if (index >= from.gids.size()) return EINVAL;
    if (from.gids[index].type == 99) return ENODATA;
    *out = from.gids[index];
    out->index = index;
    return 0;
  }
  static VerbsDomain* alloc_domain(VerbsContext* context) {
    const Object* object = called("ibv_alloc_pd", context, "context");
    if (object == nullptr) return nullptr;
    return reinterpret_cast<VerbsDomain*>(make("domain", object->adapter, {context}));
  }
  static int dealloc_domain(VerbsDomain* domain) {
    return release("ibv_dealloc_pd", domain, "domain");
  }
  static VerbsRegion* add_region(const Object* domain, void* address, std::size_t bytes,
                                 int access) {
    if (domain == nullptr) return nullptr;
    Object* made = make("region", domain->adapter, {domain});
    std::uint32_t key = made->number;
    if (fake->on_register) key = fake->on_register(domain->adapter, address, bytes, access);
    made->seen.region = {};
    made->seen.region.lkey = made->seen.region.rkey = key;
    return &made->seen.region;
  }
  static VerbsRegion* register_memory(VerbsDomain* domain, void* address, std::size_t bytes,
                                      int access) {
    const auto at = reinterpret_cast<std::uint64_t>(address);
    const Object* object =
        called("ibv_reg_mr", domain, "domain", {at, bytes, static_cast<std::uint64_t>(access)});
    return add_region(object, address, bytes, access);
  }
  static VerbsRegion* register_dmabuf(VerbsDomain* domain, std::uint64_t offset, std::size_t bytes,
                                      std::uint64_t address, int fd, int access) {
    const Object* object = called("ibv_reg_dmabuf_mr", domain, "domain",
                                  {offset, bytes, address, static_cast<std::uint64_t>(fd)});
    return add_region(object, reinterpret_cast<void*>(address), bytes, access);
  }
  static int deregister_memory(VerbsRegion* region) {
    return release("ibv_dereg_mr", region, "region");
  }
  static VerbsAddress* create_address(VerbsDomain* domain, VerbsPath* path) {
    const Object* object =
        called("ibv_create_ah", domain, "domain",
               {path->own_gid_index, path->hop_limit, path->is_global, path->gid[15]});
    if (object == nullptr) return nullptr;
    return reinterpret_cast<VerbsAddress*>(make("address", object->adapter, {domain}));
  }
  static int destroy_address(VerbsAddress* address) {
    return release("ibv_destroy_ah", address, "address");
  }
  static int init_obj(Mlx5Details* details, std::uint64_t kinds) {
    if (fails("mlx5dv_init_obj", {kinds})) return fake->status;
    static Mlx5AddressVector vector{};
    if (kinds == 1 << 6) {
      const Object* domain = find(details->domain.in, "domain", "mlx5dv_init_obj");
      if (domain == nullptr) return EINVAL;
      details->domain.out->number = domain->number;
      return 0;
    }
    if (kinds != 1 << 5 || find(details->address.in, "address", "mlx5dv_init_obj") == nullptr) {
      return EINVAL;
    }
    std::iota(std::begin(vector.link_address), std::end(vector.link_address), std::uint8_t{0x10});
    details->address.out->vector = &vector;
    return 0;
  }

  /// Writes the answer to a command: zeros changed by `fill`, or a refusal.
  template <class Fill>
  static int answer(const char* call, bool fail, void* out, std::size_t bytes, const Fill& fill) {
    Bytes made(bytes);
    const bool good = !fail && fill(made);
    if (!good) {
      made.assign(bytes, std::byte{0});
      put_number(made, 0, 1, 0x03);
      put_number(made, 4, 4, 0x00c0ffee);
    } else if (fake->spoil) {
      fake->spoil(call, made);
    }
    std::memcpy(out, made.data(), bytes);
    if (!good) errno = fake->status;
    return good ? 0 : fake->status;
  }
  static Bytes copy(const void* in, std::size_t bytes) {
    const auto* from = static_cast<const std::byte*>(in);
    return Bytes(from, from + bytes);
  }
  static int general_command(VerbsContext* context, const void* in, std::size_t in_bytes, void* out,
                             std::size_t out_bytes) {
    const Bytes command = copy(in, in_bytes);
    const Object* object = called("QUERY_HCA_CAP", context, "context", {}, command);
    return answer("QUERY_HCA_CAP", object == nullptr, out, out_bytes, [&](Bytes& answered) {
      if (number_at(command.data(), 2) != 0x100 || out_bytes != 16 + 4096) return false;
      const std::uint32_t modifier = number_at(command.data() + 6, 2);
      const Bytes& set = modifier == 7 ? adapter(*object).atomic : adapter(*object).general;
      if (modifier != 1 && modifier != 7) return false;
      std::copy(set.begin(), set.end(), answered.begin() + 16);
      return true;
    });
  }

  static bool create_cq(const Object& context, const Bytes& command, Object** made) {
    const Object* umem = numbered("umem", context, number_at(command.data() + 0x2c0 / 8, 4));
    const Object* record = numbered("umem", context, number_at(command.data() + 16 + 4, 4));
    const Object* uar = numbered("uar", context, number_at(command.data() + 16 + 13, 3));
    if (umem == nullptr || record == nullptr || uar == nullptr) return false;
    const std::uint32_t log_size = number_at(command.data() + 16 + 12, 1) & 31;
    if (umem->bytes < (std::size_t{64} << log_size)) return false;
    *made = make("CQ", context.adapter, {&context, umem, record, uar});
    (*made)->address = umem->address;
    (*made)->elements = 1u << log_size;
    (*made)->collapsed = (number_at(command.data() + 17, 1) & 0x10) != 0;
    return true;
  }
  /// Finds the ring of receive WQEs, which precedes the send WQEBBs. Returns its size in bytes.
  static std::size_t find_receives(const std::byte* qpc, const Object& umem, const Object& cq,
                                   QueuePair& pair) {
    const std::uint32_t type = number_at(qpc + 172, 1) & 7;
    const std::uint32_t sizes = number_at(qpc + 9, 1);
    if (type != 0) {
      if (type != 3 || sizes != 0) fake->violations.emplace_back("receives of an unknown kind");
      return 0;
    }
    pair.receives = static_cast<std::byte*>(umem.address);
    pair.receive_count = 1u << (sizes >> 3 & 15);
    pair.received = static_cast<std::byte*>(cq.address);
    pair.received_elements = cq.elements;
    if (cq.collapsed || cq.elements < pair.receive_count) {
      fake->violations.emplace_back("completions of receives overwrite each other");
    }
    const std::size_t bytes = (std::size_t{16} << (sizes & 7)) * pair.receive_count;
    if (bytes % 64 != 0) fake->violations.emplace_back("WQEBBs that are not aligned");
    return bytes;
  }
  static bool create_qp(const Object& context, const Bytes& command, Object** made) {
    const std::byte* qpc = command.data() + 24;
    const Object* umem = numbered("umem", context, number_at(command.data() + 264, 4));
    const Object* record = numbered("umem", context, number_at(qpc + 228, 4));
    const Object* uar = numbered("uar", context, number_at(qpc + 13, 3));
    const Object* cq = numbered("CQ", context, number_at(qpc + 125, 3));
    const Object* received = numbered("CQ", context, number_at(qpc + 157, 3));
    const Object* domain = numbered("domain", context, number_at(qpc + 5, 3));
    if (umem == nullptr || record == nullptr || uar == nullptr || cq == nullptr ||
        received == nullptr || domain == nullptr) {
      return false;
    }
    QueuePair pair;
    pair.adapter = context.adapter;
    pair.depth = 1u << (number_at(qpc + 10, 1) >> 3 & 15);
    const std::size_t offset = number_at(qpc + 160, 8);
    const std::size_t receives = find_receives(qpc, *umem, *received, pair);
    if (umem->bytes < receives + pair.depth * std::size_t{64}) return false;
    if (record->bytes < offset + 8) return false;
    pair.ring = static_cast<std::byte*>(umem->address) + receives;
    pair.record =
        reinterpret_cast<std::uint32_t*>(static_cast<std::byte*>(record->address) + offset);
    pair.completions = static_cast<std::byte*>(cq->address);
    pair.doorbell = static_cast<std::uint64_t*>(uar->seen.uar.doorbell);
    *made = make("QP", context.adapter, {&context, umem, record, uar, cq, received, domain});
    if (fake->on_create) (*made)->number = fake->on_create(pair);
    pair.number = (*made)->number;
    fake->queue_pairs[key_of(pair.adapter, pair.number)] = pair;
    return true;
  }
  static Mlx5Object* create_object(VerbsContext* context, const void* in, std::size_t in_bytes,
                                   void* out, std::size_t out_bytes) {
    const Bytes command = copy(in, in_bytes);
    const bool is_cq = number_at(command.data(), 2) == 0x400;
    const char* call = is_cq ? "CREATE_CQ" : "CREATE_QP";
    const Object* object = called(call, context, "context", {}, command);
    Object* made = nullptr;
    const int status = answer(call, object == nullptr, out, out_bytes, [&](Bytes& answered) {
      if (in_bytes != 272 || out_bytes != 16) return false;
      if (!(is_cq ? create_cq : create_qp)(*object, command, &made)) return false;
      put_number(answered, 9, 3, made->number);
      return true;
    });
    return status == 0 ? reinterpret_cast<Mlx5Object*>(made) : nullptr;
  }
  static int destroy_object(Mlx5Object* object) {
    const auto found = fake->objects_.find(object);
    const bool is_cq = found != fake->objects_.end() && found->second->kind == "CQ";
    return release(is_cq ? "DESTROY_CQ" : "DESTROY_QP", object, is_cq ? "CQ" : "QP");
  }

  /// Applies one state change of a queue pair. Refuses changes out of order.
  static bool step(QueuePair& pair, std::uint32_t opcode, const Bytes& command) {
    const std::byte* qpc = command.data() + 24;
    if (opcode == 0x507) {
      pair.state = 6;
      if (fake->on_error) fake->on_error(pair);
      return command.size() == 16;
    }
    if (command.size() != 272 || opcode < 0x502 || opcode > 0x504) return false;
    const int before = static_cast<int>(opcode) - 0x502;
    if (pair.state != before) {
      fake->violations.emplace_back("a queue pair skips a state");
      return false;
    }
    pair.state = before + 1;
    if (opcode == 0x503) {
      pair.remote = number_at(qpc + 21, 3);
      pair.remote_lid = static_cast<std::uint16_t>(number_at(qpc + 24 + 6, 2));
    }
    if (opcode == 0x504 && fake->on_ready) fake->on_ready(pair);
    return true;
  }
  static const char* name_of(std::uint32_t opcode) {
    static const std::map<std::uint32_t, const char*> names = {
        {0x502, "RST2INIT_QP"}, {0x503, "INIT2RTR_QP"}, {0x504, "RTR2RTS_QP"}, {0x507, "2ERR_QP"}};
    const auto named = names.find(opcode);
    return named == names.end() ? "an unknown command" : named->second;
  }
  static int modify_object(Mlx5Object* object, const void* in, std::size_t in_bytes, void* out,
                           std::size_t out_bytes) {
    const Bytes command = copy(in, in_bytes);
    const std::uint32_t opcode = number_at(command.data(), 2);
    const Object* found = called(name_of(opcode), object, "QP", {}, command);
    return answer(name_of(opcode), found == nullptr, out, out_bytes, [&](Bytes&) {
      if (number_at(command.data() + 9, 3) != found->number) return false;
      return step(fake->queue_pairs.at(key_of(found->adapter, found->number)), opcode, command);
    });
  }
  static Mlx5Umem* add_umem(const Object* context, void* address, std::size_t bytes) {
    if (context == nullptr) return nullptr;
    Object* made = make("umem", context->adapter, {context});
    made->seen.umem.id = made->number;
    made->address = address;
    made->bytes = bytes;
    return &made->seen.umem;
  }
  static Mlx5Umem* register_umem(VerbsContext* context, void* address, std::size_t bytes,
                                 std::uint32_t access) {
    const auto at = reinterpret_cast<std::uint64_t>(address);
    return add_umem(called("mlx5dv_devx_umem_reg", context, "context", {at, bytes, access}),
                    address, bytes);
  }
  static Mlx5Umem* register_umem_ex(VerbsContext* context, Mlx5UmemOptions* options) {
    const auto offset = reinterpret_cast<std::uint64_t>(options->address);
    const Object* object = called("mlx5dv_devx_umem_reg_ex", context, "context",
                                  {offset, options->bytes, options->access, options->page_sizes,
                                   options->mask, static_cast<std::uint64_t>(options->descriptor)});
    return add_umem(object, nullptr, options->bytes);
  }
  static int deregister_umem(Mlx5Umem* umem) {
    return release("mlx5dv_devx_umem_dereg", umem, "umem");
  }
  static Mlx5Uar* alloc_uar(VerbsContext* context, std::uint32_t flags) {
    const Object* object = called("mlx5dv_devx_alloc_uar", context, "context", {flags});
    if (object == nullptr) return nullptr;
    if (flags == 1 && !fake->has_uncached_registers) {
      errno = EOPNOTSUPP;
      return nullptr;
    }
    // Returns the same uncached register for a context each time, like rdma-core.
    for (const auto& [pointer, other] : fake->objects_) {
      const bool is_it = flags == 1 && other->kind == "uar" && other->needs[0] == context;
      if (!is_it || !other->is_uncached) continue;
      ++other->owners;
      return &other->seen.uar;
    }
    Object* made = make("uar", object->adapter, {context});
    made->is_uncached = flags == 1;
    made->seen.uar = {};
    made->seen.uar.page_number = made->number;
    made->seen.uar.page = made->page.data();
    made->seen.uar.doorbell = &made->page[256];
    return &made->seen.uar;
  }
  static void free_uar(Mlx5Uar* uar) {
    static_cast<void>(release("mlx5dv_devx_free_uar", uar, "uar"));
  }
  static int query_event_queue(VerbsContext* context, std::uint32_t vector, std::uint32_t* number) {
    if (called("mlx5dv_devx_query_eqn", context, "context", {vector}) == nullptr) {
      return fake->status;
    }
    *number = 0x2b;
    return 0;
  }

  /// Makes a call with the lock held.
  template <auto kCall, class = decltype(kCall)>
  struct Locked;
  template <auto kCall, class R, class... Args>
  struct Locked<kCall, R (*)(Args...)> {
    static R call(Args... args) {
      const std::lock_guard lock(fake->mutex_);
      return kCall(args...);
    }
  };

  static VerbsTable table() {
    VerbsTable made{};
#define ORIEL_DETAIL_TAKE(member, symbol, result, parameters) made.member = Locked<member>::call;
    ORIEL_IBVERBS_CALLS(ORIEL_DETAIL_TAKE)
    ORIEL_MLX5_CALLS(ORIEL_DETAIL_TAKE)
#undef ORIEL_DETAIL_TAKE
    return made;
  }
};

FakeVerbs::FakeVerbs() {
  fake = this;
  adapters.push_back(adapter("mlx5_0"));
  library.table = Access::table();
}

FakeVerbs::~FakeVerbs() {
  fake = nullptr;
}

std::size_t FakeVerbs::live(const std::string& kind) const {
  const std::lock_guard lock(mutex_);
  return static_cast<std::size_t>(
      std::count_if(objects_.begin(), objects_.end(),
                    [&](const auto& entry) { return kind.empty() || entry.second->kind == kind; }));
}

VerbsGid FakeVerbs::gid(std::vector<std::uint8_t> head, std::vector<std::uint8_t> tail,
                        std::uint32_t type) {
  VerbsGid made{};
  std::copy(head.begin(), head.end(), made.bytes);
  std::copy(tail.begin(), tail.end(), made.bytes + 16 - tail.size());
  made.type = type;
  made.port = 1;
  return made;
}

FakeVerbs::Adapter FakeVerbs::adapter(const std::string& name) {
  Adapter made;
  made.name = name;
  made.gids = {gid({0xfe, 0x80}, {0x01}, 0)};
  made.general.resize(4096);
  made.general[0x88 / 8] = std::byte{15};  // queue pairs of 2^15 WQEBBs
  made.general[0xc8 / 8] = std::byte{22};  // completion queues of 2^22 CQEs
  made.general[0x148 / 8] = std::byte{0x00};
  put_number(made.general, 0x140 / 8, 4, 4u << 16 | 4);  // 16 reads each way
  put_number(made.general, 0x1c0 / 8, 1, 30);            // messages of 2^30 bytes
  put_number(made.general, 0x1fc / 8, 1, 1);             // completions of version 1
  put_number(made.general, 0x218 / 8, 1, 0x02);          // atomics
  put_number(made.general, 0x220 / 8, 4, 0x80000001);    // ignoring overruns; connections
  made.atomic.resize(4096);
  put_number(made.atomic, 0x40 / 8, 1, 0x40);
  put_number(made.atomic, 0x90 / 8, 2, 0x000f);
  put_number(made.atomic, 0xb0 / 8, 2, 0x000c);
  return made;
}

std::vector<std::string> FakeVerbs::names() const {
  std::vector<std::string> all;
  for (const Call& call : calls) all.push_back(call.name);
  return all;
}

const FakeVerbs::Call* FakeVerbs::find(const std::string& name, std::size_t nth) const {
  for (const Call& call : calls) {
    if (call.name == name && nth-- == 0) return &call;
  }
  return nullptr;
}

}  // namespace oriel::net::test
