// Takes COUNT buffers of 1 MiB: buffers new|new0|vector|string|make_unique|for_overwrite COUNT. Marks `before` and
// `taken`; prints one line of JSON: wanted_bytes, and the sum of one byte of each buffer (which keeps them in use).
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "strandline.h"

// No constant: g++ would fill a vector and a string of a megabyte while it compiles, to see whether it can.
static std::size_t buffer_bytes = 1 << 20;

// Takes them with `take`, and reads them through `bytes_of`.
template <typename Take, typename BytesOf> int run(std::size_t wanted, Take take, BytesOf bytes_of) {
  std::vector<decltype(take())> buffers;
  buffers.reserve(wanted);
  strandline_mark("before");
  for (std::size_t i = 0; i < wanted; i++) buffers.push_back(take());
  strandline_mark("taken");
  unsigned long sum = 0;
  for (auto &buffer : buffers) sum += static_cast<unsigned char>(bytes_of(buffer)[5000]);
  std::printf("{\"wanted_bytes\": %zu, \"sum\": %lu}\n", wanted * buffer_bytes, sum);
  return 0;
}

int main(int count, char **values) {
  if (count != 3) return 2;
  std::string idiom = values[1];
  std::size_t wanted = std::strtoul(values[2], nullptr, 10);
  auto itself = [](char *buffer) { return buffer; };
  auto get = [](const std::unique_ptr<char[]> &buffer) { return buffer.get(); };
  auto data = [](const auto &buffer) { return buffer.data(); };
  if (idiom == "new") return run(wanted, [] { return new char[buffer_bytes]; }, itself);
  if (idiom == "new0") return run(wanted, [] { return new char[buffer_bytes](); }, itself);
  if (idiom == "vector") return run(wanted, [] { return std::vector<char>(buffer_bytes); }, data);
  if (idiom == "string") return run(wanted, [] { return std::string(buffer_bytes, '\0'); }, data);
  if (idiom == "make_unique") return run(wanted, [] { return std::make_unique<char[]>(buffer_bytes); }, get);
  if (idiom == "for_overwrite")
    return run(wanted, [] { return std::make_unique_for_overwrite<char[]>(buffer_bytes); }, get);
  return 2;
}
