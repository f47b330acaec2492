#pragma once
// What each rank says of itself, as a struct with fields (runtime/op/attrs).
#include <vector>

#include "runtime/comm/group/agree.h"
#include "runtime/op/attrs/attr_list.h"

namespace sherd::train {

/// Every rank's, by rank. Collective.
template <AttrStruct T>
std::vector<T> gather_attrs(ProcessGroup& group, const T& own) {
  std::vector<T> all;
  for (const std::string& text : gather_text(group, AttrsView(own).print()))
    all.push_back(parse_attrs(attr_kind<T>, text).template as<T>());
  return all;
}

}  // namespace sherd::train
