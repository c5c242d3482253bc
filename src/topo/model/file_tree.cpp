// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "topo/model/file_tree.hpp"

#include <algorithm>
#include <charconv>
#include <filesystem>

#include <fcntl.h>
#include <unistd.h>

#include "base/fd.hpp"

namespace oriel::topo {

std::string FileTree::full(std::string_view path) const {
  if (notice_) notice_(path);
  std::string whole = root_;
  while (!whole.empty() && whole.back() == '/') whole.pop_back();
  return whole.append("/").append(path.substr(std::min(path.find_first_not_of('/'), path.size())));
}

std::optional<std::string> FileTree::read(std::string_view path, std::size_t most) const {
  // O_NONBLOCK: a FIFO among the files of a fixture must not block the reader.
  const OwnedFd fd(::open(full(path).c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd) return std::nullopt;
  std::string text;
  std::size_t have = 0;
  while (have < most) {
    if (have == text.size()) text.resize(std::min(most, have + kMostBytes));
    const ssize_t got = ::read(fd.get(), text.data() + have, text.size() - have);
    if (got < 0) return std::nullopt;
    if (got == 0) break;
    have += static_cast<std::size_t>(got);
  }
  text.resize(have);
  constexpr const char* kSpace = " \t\r\n";
  const std::size_t first = text.find_first_not_of(kSpace);
  if (first == std::string::npos) return std::string();
  return text.substr(first, text.find_last_not_of(kSpace) - first + 1);
}

std::optional<std::int64_t> FileTree::read_number(std::string_view path) const {
  const auto text = read(path);
  if (!text) return std::nullopt;
  std::int64_t number = 0;
  const char* const end = text->data() + text->size();
  const auto [rest, error] = std::from_chars(text->data(), end, number);
  if (error != std::errc() || rest != end) return std::nullopt;
  return number;
}

std::vector<std::string> FileTree::list(std::string_view path) const {
  std::vector<std::string> names;
  std::error_code error;
  std::filesystem::directory_iterator entry(full(path), error);
  for (; !error && entry != std::filesystem::directory_iterator() && names.size() < kMostEntries;
       entry.increment(error)) {
    names.push_back(entry->path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

bool FileTree::exists(std::string_view path) const {
  std::error_code error;
  return std::filesystem::exists(full(path), error);
}

std::optional<std::string> FileTree::link_name(std::string_view path) const {
  std::error_code error;
  const auto target = std::filesystem::read_symlink(full(path), error);
  if (error) return std::nullopt;
  return target.filename().string();
}

std::vector<std::string> FileTree::resolved(std::string_view path) const {
  std::error_code error;
  const auto whole = std::filesystem::canonical(full(path), error);
  std::vector<std::string> parts;
  if (error) return parts;
  for (const auto& part : whole.relative_path()) parts.push_back(part.string());
  return parts;
}

}  // namespace oriel::topo
