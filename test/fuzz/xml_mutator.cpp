// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
// Mutates documents as trees of elements with attributes, because random byte changes are hardly
// ever valid XML.
#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "topo/xml/xml_reader.hpp"

using namespace oriel;
using namespace oriel::topo;

extern "C" std::size_t LLVMFuzzerMutate(std::uint8_t* data, std::size_t size, std::size_t most);

namespace {

using Random = std::minstd_rand;

std::size_t pick(Random& random, std::size_t count) {
  return random() % count;
}

/// Returns a random position among `items`.
template <typename Items>
auto place_in(Random& random, Items& items, std::size_t count) {
  return items.begin() + static_cast<std::ptrdiff_t>(pick(random, count));
}

void collect(XmlElement& element, std::vector<XmlElement*>& all) {
  all.push_back(&element);
  for (XmlElement& child : element.children) collect(child, all);
}

void write(const XmlElement& element, std::string& text) {
  text += "<" + element.name;
  for (const auto& [name, value] : element.attributes) {
    text += " " + name + "=\"";
    for (const char letter : value) {
      const bool plain = letter >= ' ' && letter != '"' && letter != '<' && letter != '&';
      text += plain ? letter : '?';
    }
    text += "\"";
  }
  text += ">" + element.text;
  for (const XmlElement& child : element.children) write(child, text);
  text += "</" + element.name + ">\n";
}

constexpr const char* kValues[] = {
    "0",           "1",          "-1",         "2",
    "4294967295",  "4294967296", "2147483648", "18446744073709551615",
    "0x0",         "0xf...f",    "0x00000001", "0x00000001,0x00000000",
    "0xf...f,0x0", "",           "NUMANode",   "Machine",
    "Package",     "Group",      "PU",         "Core",
    "Bridge",      "PCIDev",     "OSDev",      "Misc",
    "MemCache",    "L3Cache",    "Die",        "0-1",
    "1-1",         "1-0",        "0-0",        "0000:[00-ff]",
    "0000:[ff-00]"};

void change_value(Random& random, std::string& value) {
  if (pick(random, 2) == 0) {
    value = kValues[pick(random, std::size(kValues))];
    return;
  }
  std::string bytes = value;
  bytes.resize(value.size() + 16);
  bytes.resize(
      LLVMFuzzerMutate(reinterpret_cast<std::uint8_t*>(bytes.data()), value.size(), bytes.size()));
  value = bytes;
}

/// Makes one change somewhere in the tree.
void change(Random& random, XmlElement& root) {
  std::vector<XmlElement*> all;
  collect(root, all);
  XmlElement& one = *all[pick(random, all.size())];
  XmlElement& other = *all[pick(random, all.size())];
  auto& children = one.children;
  auto& attributes = one.attributes;
  switch (pick(random, 8)) {
    case 0:
      if (!children.empty()) children.erase(place_in(random, children, children.size()));
      return;
    case 1: {
      const XmlElement copy = other;
      if (all.size() < 2000) children.insert(place_in(random, children, children.size() + 1), copy);
      return;
    }
    case 2:
      if (!attributes.empty()) attributes.erase(place_in(random, attributes, attributes.size()));
      return;
    case 3:
      if (!other.attributes.empty()) {
        const auto taken = other.attributes[pick(random, other.attributes.size())];
        if (one.find(taken.first) == nullptr) attributes.push_back(taken);
      }
      return;
    case 4:
      if (children.size() > 1) {
        std::swap(children[pick(random, children.size())], children[pick(random, children.size())]);
      }
      return;
    case 5:
      if (!children.empty()) {  // replaces all children by those of one child
        const XmlElement gone = children[pick(random, children.size())];
        children = gone.children;
      }
      return;
    default:
      if (!attributes.empty())
        change_value(random, attributes[pick(random, attributes.size())].second);
  }
}

}  // namespace

extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size,
                                               std::size_t most, unsigned seed) {
  Random random(seed + 1);
  auto root = parse_xml({reinterpret_cast<const char*>(data), size});
  if (!root.ok() || pick(random, 16) == 0) return LLVMFuzzerMutate(data, size, most);
  for (std::size_t i = 0, changes = 1 + pick(random, 4); i < changes; ++i) change(random, *root);
  std::string text;
  write(*root, text);
  if (text.size() > most) return LLVMFuzzerMutate(data, size, most);
  std::copy(text.begin(), text.end(), data);
  return text.size();
}
