// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
// Audit module of the loader (rtld-audit(7)) for `oriel-run --preload`. If a process asks for
// libnccl.so.2, by name or by path, the loader gets the file beside this module. The module is
// loaded into every process that the program starts, in a namespace with its own libc, and uses
// nothing else.
#include <climits>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include <dlfcn.h>
#include <link.h>
#include <unistd.h>

namespace {

// Paths of Oriel's files; empty if not found.
char own_nccl[PATH_MAX];
char own_oriel[PATH_MAX];
const link_map* first_object = nullptr;  // the program's executable

const char* base_name(const char* path) {
  const char* slash = std::strrchr(path, '/');
  return slash != nullptr ? slash + 1 : path;
}

// Accepts libnccl.so, libnccl.so.2, libnccl.so.2.28.9; not libnccl-net.so and other plug-ins.
bool names_nccl(const char* path) {
  constexpr char kStem[] = "libnccl.so";
  const char* name = base_name(path);
  if (std::strncmp(name, kStem, sizeof kStem - 1) != 0) return false;
  const char* rest = name + sizeof kStem - 1;
  return *rest == '\0' || std::strcmp(rest, ".2") == 0 || std::strncmp(rest, ".2.", 3) == 0;
}

bool put_sibling(char (&path)[PATH_MAX], const char* of, const char* name) {
  const auto folder = static_cast<int>(base_name(of) - of);
  const int length = std::snprintf(path, sizeof path, "%.*s%s", folder, of, name);
  if (length > 0 && length < PATH_MAX && ::access(path, R_OK) == 0) return true;
  path[0] = '\0';
  return false;
}

// Tables of an object's dynamic section, with absolute addresses: the loader leaves those of the
// vDSO relative.
struct SymbolTable {
  const ElfW(Sym) * symbols = nullptr;
  const char* strings = nullptr;
  const std::uint32_t* hash = nullptr;      // DT_HASH
  const std::uint32_t* gnu_hash = nullptr;  // DT_GNU_HASH

  explicit SymbolTable(const link_map& object) {
    if (object.l_ld == nullptr) return;
    for (const ElfW(Dyn)* entry = object.l_ld; entry->d_tag != DT_NULL; ++entry) {
      const ElfW(Addr) address =
          entry->d_un.d_ptr < object.l_addr ? entry->d_un.d_ptr + object.l_addr : entry->d_un.d_ptr;
      const auto* words = reinterpret_cast<const std::uint32_t*>(address);
      if (entry->d_tag == DT_SYMTAB) symbols = reinterpret_cast<const ElfW(Sym)*>(address);
      if (entry->d_tag == DT_STRTAB) strings = reinterpret_cast<const char*>(address);
      if (entry->d_tag == DT_HASH) hash = words;
      if (entry->d_tag == DT_GNU_HASH) gnu_hash = words;
    }
  }

  // Returns the number of symbols. DT_HASH contains it; with DT_GNU_HASH, the last chain ends with
  // the last symbol.
  std::uint32_t count() const {
    if (hash != nullptr) return hash[1];
    if (gnu_hash == nullptr) return 0;
    const std::uint32_t bucket_count = gnu_hash[0], first = gnu_hash[1], bloom_words = gnu_hash[2];
    const std::uint32_t* buckets = gnu_hash + 4 + bloom_words * (sizeof(ElfW(Addr)) / 4);
    const std::uint32_t* chains = buckets + bucket_count;
    std::uint32_t last = 0;
    for (std::uint32_t i = 0; i < bucket_count; ++i)
      if (buckets[i] > last) last = buckets[i];
    if (last < first) return 0;
    while ((chains[last - first] & 1) == 0) ++last;
    return last + 1;
  }

  bool defines(const char* name) const {
    if (symbols == nullptr || strings == nullptr) return false;
    for (std::uint32_t i = 1, end = count(); i < end; ++i)
      if (symbols[i].st_shndx != SHN_UNDEF && std::strcmp(strings + symbols[i].st_name, name) == 0)
        return true;
    return false;
  }
};

// Reports which object defines ncclAllReduce. Objects are listed in the loader's search order.
void report_all_reduce() {
  const link_map* definer = first_object;
  while (definer != nullptr && !SymbolTable(*definer).defines("ncclAllReduce"))
    definer = definer->l_next;
  if (definer == nullptr) {
    ::dprintf(STDERR_FILENO, "oriel-run: nothing in this process defines ncclAllReduce\n");
  } else if (std::strcmp(definer->l_name, own_nccl) == 0 ||
             std::strcmp(definer->l_name, own_oriel) == 0) {
    ::dprintf(STDERR_FILENO, "oriel-run: ncclAllReduce is %s\n", own_oriel);
  } else {
    ::dprintf(STDERR_FILENO, "oriel-run: ncclAllReduce is %s, which is not Oriel\n",
              definer == first_object ? "the program itself" : definer->l_name);
  }
}

}  // namespace

extern "C" {

unsigned int la_version(unsigned int version) {
  Dl_info self;
  if (::dladdr(reinterpret_cast<void*>(&la_version), &self) != 0) {
    put_sibling(own_nccl, self.dli_fname, "libnccl.so.2");
    put_sibling(own_oriel, self.dli_fname, "liboriel.so.0");
  }
  return version < LAV_CURRENT ? version : LAV_CURRENT;
}

char* la_objsearch(const char* name, uintptr_t* /*cookie*/, unsigned int flag) {
  const bool replace = flag == LA_SER_ORIG && own_nccl[0] != '\0' && names_nccl(name);
  return replace ? own_nccl : const_cast<char*>(name);
}

unsigned int la_objopen(link_map* object, Lmid_t space, uintptr_t* /*cookie*/) {
  if (space == LM_ID_BASE && first_object == nullptr) first_object = object;
  return 0;  // requests no symbol bindings, which would slow every call
}

void la_preinit(uintptr_t* /*cookie*/) {
  // oriel-run sets this variable to the pid of the process that it starts. The name does not start
  // with ORIEL_, since the library warns of unknown settings.
  char* process = ::secure_getenv("_ORIEL_RUN_REPORT");
  if (process == nullptr || std::atol(process) != ::getpid()) return;
  *process = '\0';  // clears it in the program's own environment, so a later exec does not report
                    // again
  report_all_reduce();
}

}  // extern "C"
