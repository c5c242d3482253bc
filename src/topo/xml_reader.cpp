// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "topo/xml_reader.hpp"

#include <algorithm>
#include <memory>
#include <new>

#include <expat.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include "base/fd.hpp"

namespace oriel::topo {
namespace {

Error refused(std::size_t line, const std::string& why) {
  return Error(ErrorCode::invalid_argument, fmt::format("line {}: {}", line, why));
}

/// Builds the tree while expat reads. What it refuses ends the reading.
class Builder {
 public:
  Builder(XML_Parser parser, const XmlLimits& limits) : parser_(parser), limits_(limits) {
    XML_SetUserData(parser, this);
    XML_SetElementHandler(
        parser,
        [](void* self, const char* name, const char** attributes) {
          static_cast<Builder*>(self)->guarded([&](Builder& b) { b.begin(name, attributes); });
        },
        [](void* self, const char*) {
          static_cast<Builder*>(self)->guarded([](Builder& b) { b.end(); });
        });
    XML_SetEntityDeclHandler(parser, [](void* self, const char*, int, const char*, int, const char*,
                                        const char*, const char*, const char*) {
      static_cast<Builder*>(self)->stop("it declares an entity");
    });
  }

  /// The root, or why there is none.
  Result<XmlElement> finish(XML_Status status) {
    if (!why_.empty()) return refused(line_, why_);
    if (status != XML_STATUS_OK) {
      return refused(XML_GetCurrentLineNumber(parser_), XML_ErrorString(XML_GetErrorCode(parser_)));
    }
    return std::move(root_);
  }

 private:
  // No exception may cross expat.
  template <typename Action>
  void guarded(const Action& action) {
    try {
      action(*this);
    } catch (const std::bad_alloc&) {
      stop("out of memory");
    }
  }

  void stop(const char* why) {
    if (!why_.empty()) return;
    why_ = why;
    line_ = XML_GetCurrentLineNumber(parser_);
    XML_StopParser(parser_, XML_FALSE);
  }

  void begin(const char* name, const char** attributes) {
    if (!why_.empty()) return;
    if (++elements_ > limits_.elements) return stop("there are too many elements");
    if (open_.size() >= limits_.depth) return stop("elements are nested too deeply");
    XmlElement element;
    element.name = name;
    element.line = XML_GetCurrentLineNumber(parser_);
    for (; *attributes != nullptr; attributes += 2) {
      element.attributes.emplace_back(attributes[0], attributes[1]);
    }
    // Elements still open are the last ones of their parents, which do not move until they end.
    XmlElement& placed = open_.empty() ? root_ : open_.back()->children.emplace_back();
    placed = std::move(element);
    open_.push_back(&placed);
  }

  void end() {
    if (why_.empty()) open_.pop_back();
  }

  XML_Parser parser_;
  const XmlLimits& limits_;
  XmlElement root_;
  std::vector<XmlElement*> open_;
  std::size_t elements_ = 0;
  std::string why_;
  std::size_t line_ = 0;
};

}  // namespace

const std::string* XmlElement::find(std::string_view attribute) const {
  const auto found = std::find_if(attributes.begin(), attributes.end(),
                                  [&](const auto& one) { return one.first == attribute; });
  return found == attributes.end() ? nullptr : &found->second;
}

Result<XmlElement> parse_xml(std::string_view text, const XmlLimits& limits) {
  if (text.size() > limits.bytes) {
    return Error(ErrorCode::invalid_argument,
                 fmt::format("{} bytes, at most {}", text.size(), limits.bytes));
  }
  const std::unique_ptr<XML_ParserStruct, void (*)(XML_Parser)> parser(XML_ParserCreate(nullptr),
                                                                       XML_ParserFree);
  if (parser == nullptr) return Error(ErrorCode::system, "out of memory");
  Builder builder(parser.get(), limits);
  return builder.finish(
      XML_Parse(parser.get(), text.data(), static_cast<int>(text.size()), XML_TRUE));
}

Result<std::string> read_xml_file(const std::string& path, const XmlLimits& limits) {
  // A fifo or a terminal would be waited for.
  const OwnedFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd) return system_error(fmt::format("opening {}", path));
  std::string text;
  std::string part(std::size_t{64} << 10, '\0');
  for (;;) {
    const ssize_t got = ::read(fd.get(), part.data(), part.size());
    if (got < 0) return system_error(fmt::format("reading {}", path));
    if (got == 0) return text;
    text.append(part, 0, static_cast<std::size_t>(got));
    if (text.size() > limits.bytes) {
      return Error(ErrorCode::invalid_argument,
                   fmt::format("{} has more than {} bytes", path, limits.bytes));
    }
  }
}

}  // namespace oriel::topo
