// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "run/program_file.hpp"

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <span>
#include <sstream>
#include <string_view>

#include <elf.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fd.hpp"

namespace oriel::run {
namespace {

constexpr const char* kEntry = "ncclAllReduce";
// Name by which NCCL's host code registers a kernel; `strip` leaves such names in the file.
constexpr std::string_view kKernelName = "ncclDevKernel_AllReduce";
constexpr int kMostInterpreters = 4;  // nesting limit of Linux for scripts, see execve(2)

/// Maps a file read-only.
class MappedFile {
 public:
  explicit MappedFile(const std::string& path) {
    const OwnedFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    struct stat info {};
    if (!fd || ::fstat(fd.get(), &info) != 0 || !S_ISREG(info.st_mode) || info.st_size == 0) return;
    const auto size = static_cast<std::size_t>(info.st_size);
    void* data = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd.get(), 0);
    if (data != MAP_FAILED) bytes_ = {static_cast<const char*>(data), size};
  }
  ~MappedFile() {
    if (!bytes_.empty()) ::munmap(const_cast<char*>(bytes_.data()), bytes_.size());
  }
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::string_view bytes() const { return bytes_; }

  /// Returns `count` records at `offset`; none if they are misaligned or not within the file.
  template <class Record>
  std::span<const Record> records(std::uint64_t offset, std::uint64_t count) const {
    const bool inside = offset <= bytes_.size() && offset % alignof(Record) == 0 &&
                        count <= (bytes_.size() - offset) / sizeof(Record);
    if (!inside) return {};
    return {reinterpret_cast<const Record*>(bytes_.data() + offset), count};
  }

 private:
  std::string_view bytes_;
};

std::string find_in_path(const std::string& command) {
  if (command.find('/') != std::string::npos) return command;
  const char* path = std::getenv("PATH");
  std::istringstream folders(path != nullptr ? path : "/bin:/usr/bin");
  for (std::string folder; std::getline(folders, folder, ':');) {
    std::string candidate = (folder.empty() ? "." : folder) + "/" + command;
    if (!std::filesystem::is_directory(candidate) && ::access(candidate.c_str(), X_OK) == 0)
      return candidate;
  }
  return command;
}

// Returns the executable that runs a script: python3 for "#!/usr/bin/env python3".
std::string follow_scripts(std::string path) {
  for (int i = 0; i < kMostInterpreters; ++i) {
    std::ifstream file(path);
    std::string line;
    if (!file || file.get() != '#' || file.get() != '!' || !std::getline(file, line)) break;
    std::istringstream words(line);
    std::string interpreter;
    words >> interpreter;
    if (std::filesystem::path(interpreter).filename() == "env") {
      const auto skipped = [](const std::string& word) {
        return word[0] == '-' || word.find('=') != std::string::npos;
      };
      std::string word;
      while (words >> word && skipped(word)) {
      }
      if (!word.empty()) interpreter = find_in_path(word);
    }
    if (interpreter.empty()) break;
    path = interpreter;
  }
  return path;
}

struct Symbols {
  bool any_table = false;  // .symtab, which `strip` removes
  bool defined = false;
  bool imported = false;
};

void look_for_entry(const MappedFile& file, const Elf64_Shdr& table, const Elf64_Shdr& names,
                    Symbols& found) {
  const auto strings = file.records<char>(names.sh_offset, names.sh_size);
  if (strings.empty() || strings.back() != '\0') return;
  const auto count = table.sh_size / sizeof(Elf64_Sym);
  for (const Elf64_Sym& symbol : file.records<Elf64_Sym>(table.sh_offset, count)) {
    if (symbol.st_name >= strings.size()) continue;
    if (std::strcmp(strings.data() + symbol.st_name, kEntry) != 0) continue;
    (symbol.st_shndx == SHN_UNDEF ? found.imported : found.defined) = true;
  }
}

Symbols find_entry(const MappedFile& file, const Elf64_Ehdr& header) {
  Symbols found;
  const auto sections = file.records<Elf64_Shdr>(header.e_shoff, header.e_shnum);
  for (const Elf64_Shdr& section : sections) {
    if (section.sh_type != SHT_SYMTAB && section.sh_type != SHT_DYNSYM) continue;
    if (section.sh_type == SHT_SYMTAB) found.any_table = true;
    if (section.sh_link < sections.size())
      look_for_entry(file, section, sections[section.sh_link], found);
  }
  return found;
}

// Returns true if starting the executable changes the user or the group.
bool gains_rights(const std::string& path) {
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) return false;
  return ((info.st_mode & S_ISUID) != 0 && info.st_uid != ::getuid()) ||
         ((info.st_mode & S_ISGID) != 0 && info.st_gid != ::getgid());
}

}  // namespace

ProgramFile read_program_file(const std::string& command) {
  ProgramFile result;
  result.path = follow_scripts(find_in_path(command));
  const MappedFile file(result.path);
  const auto headers = file.records<Elf64_Ehdr>(0, 1);
  if (headers.empty() || std::memcmp(headers[0].e_ident, ELFMAG, SELFMAG) != 0 ||
      headers[0].e_ident[EI_CLASS] != ELFCLASS64)
    return result;
  const Symbols symbols = find_entry(file, headers[0]);
  bool has_loader = false;
  for (const auto& segment : file.records<Elf64_Phdr>(headers[0].e_phoff, headers[0].e_phnum))
    if (segment.p_type == PT_INTERP) has_loader = true;
  if (symbols.defined) {
    result.nccl = ProgramFile::Nccl::linked_in;
  } else if (!has_loader) {
    result.nccl = ProgramFile::Nccl::beyond_reach;
  } else if (gains_rights(result.path)) {
    result.nccl = ProgramFile::Nccl::more_rights;
  } else if (!symbols.any_table && !symbols.imported &&
             file.bytes().find(kKernelName) != std::string_view::npos) {
    result.nccl = ProgramFile::Nccl::maybe;
  }
  return result;
}

std::string preload_warning(const ProgramFile& file) {
  constexpr const char* kRemedy = "link it to libnccl.so instead of libnccl_static.a";
  switch (file.nccl) {
    case ProgramFile::Nccl::loaded:
      return "";
    case ProgramFile::Nccl::linked_in:
      return fmt::format(
          "{} links NCCL statically: it defines {} itself, so its calls do not reach Oriel; {}",
          file.path, kEntry, kRemedy);
    case ProgramFile::Nccl::maybe:
      return fmt::format(
          "{} seems to link NCCL statically: it has no symbol table, does not import {}, and "
          "contains names of NCCL's kernels; if so, its calls do not reach Oriel; {}",
          file.path, kEntry, kRemedy);
    case ProgramFile::Nccl::beyond_reach:
      return fmt::format(
          "{} is a static executable, which no loader starts, so its calls do not reach Oriel; {}",
          file.path, kRemedy);
    case ProgramFile::Nccl::more_rights:
      return fmt::format(
          "{} is a set-user-ID or set-group-ID program, for which the loader ignores LD_PRELOAD, "
          "so "
          "its calls do not reach Oriel; link it to liboriel.so",
          file.path);
  }
  return "";
}

}  // namespace oriel::run
