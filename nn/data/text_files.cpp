#include "nn/data/text_files.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "nn/checkpoint/format/checksum.h"
#include "runtime/os/descriptor.h"
#include "runtime/tensor/error.h"

namespace sherd {

namespace {

namespace fs = std::filesystem;

void list_folder(const fs::path& folder, std::vector<TextFiles::File>& files) {
  std::error_code error;
  for (fs::recursive_directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    if (it->symlink_status(error).type() != fs::file_type::regular || error) continue;
    const auto size = static_cast<std::int64_t>(it->file_size(error));
    if (error) break;
    files.push_back({it->path().string(), it->path().lexically_relative(folder).string(), 0, size});
  }
  check(!error, "cannot read the data folder \"{}\": {}", folder.string(), error.message());
  std::sort(files.begin(), files.end(),
            [](const TextFiles::File& a, const TextFiles::File& b) { return a.name < b.name; });
}

}  // namespace

TextFiles TextFiles::open(const std::string& path) {
  TextFiles result;
  result.path_ = path;
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  check(fs::exists(status), "there is no data at \"{}\": {}", path, error ? error.message() : "no such file or folder");
  if (fs::is_directory(status)) {
    list_folder(path, result.files_);
    check(!result.files_.empty(), "the data folder \"{}\" holds no regular files (links are not followed)", path);
  } else {
    check(fs::is_regular_file(status), "the data \"{}\" is neither a regular file nor a folder", path);
    const auto size = fs::file_size(path, error);
    check(!error, "cannot read the data file \"{}\": {}", path, error.message());
    result.files_.push_back({path, fs::path(path).filename().string(), 0, static_cast<std::int64_t>(size)});
  }
  std::erase_if(result.files_, [](const File& file) { return file.size == 0; });
  check(!result.files_.empty(), "the data \"{}\" is empty; pass a text, or a folder of texts", path);
  std::int64_t begin = 0;
  for (File& file : result.files_) {
    file.begin = begin;
    begin += file.size;
  }
  return result;
}

const TextFiles::File& TextFiles::file_at(std::int64_t offset) const {
  const auto after = std::upper_bound(files_.begin(), files_.end(), offset,
                                      [](std::int64_t value, const File& file) { return value < file.begin; });
  return *(after - 1);
}

void TextFiles::read(std::int64_t offset, std::span<char> out) const {
  check(offset >= 0 && offset + static_cast<std::int64_t>(out.size()) <= bytes(),
        "bytes {} to {} of the data \"{}\" asked for, which has {}", offset,
        offset + static_cast<std::int64_t>(out.size()), path_, bytes());
  while (!out.empty()) {
    const File& file = file_at(offset);
    const auto here =
        static_cast<std::size_t>(std::min(static_cast<std::int64_t>(out.size()), file.begin + file.size - offset));
    const Descriptor descriptor(::open(file.path.c_str(), O_RDONLY | O_CLOEXEC));
    check(descriptor.is_open(), "cannot open the data file \"{}\": {}", file.path, std::strerror(errno));
    const std::int64_t got = read_at(descriptor.get(), offset - file.begin, std::as_writable_bytes(out.first(here)));
    check(got >= 0, "cannot read the data file \"{}\": {}", file.path, std::strerror(errno));
    check(got == static_cast<std::int64_t>(here), "the data file \"{}\" shrank: it had {} bytes, now it ends at {}",
          file.path, file.size, offset - file.begin + got);
    out = out.subspan(here);
    offset += static_cast<std::int64_t>(here);
  }
}

std::string ContentHash::to_text() const {
  return ckpt::checksum_text(value) + (is_sampled() ? fmt::format(" of {} bytes", hashed_bytes) : "");
}

ContentHash TextFiles::content_hash(std::int64_t whole_bytes) const {
  constexpr std::int64_t kReadBytes = 1 << 20;
  ContentHash hash{.all_bytes = bytes()};
  ckpt::Checksum sum;
  std::vector<char> buffer(static_cast<std::size_t>(std::min(bytes(), kReadBytes)));
  const auto add = [&](std::int64_t offset, std::int64_t count) {
    const std::span<char> block = std::span(buffer).first(static_cast<std::size_t>(count));
    read(offset, block);
    sum.add(std::as_bytes(block));
    hash.hashed_bytes += count;
  };
  if (bytes() <= std::max(whole_bytes, kSampledBlocks * kBlockBytes)) {
    for (std::int64_t at = 0; at < bytes(); at += kReadBytes) add(at, std::min(kReadBytes, bytes() - at));
  } else {
    const std::int64_t last = bytes() - kBlockBytes, gaps = kSampledBlocks - 1;
    for (std::int64_t i = 0; i <= gaps; ++i) add(last / gaps * i + last % gaps * i / gaps, kBlockBytes);
  }
  hash.value = sum.value();
  return hash;
}

std::uint64_t TextFiles::identity() const {
  std::string text;
  for (const File& file : files_) {
    struct stat status{};
    const bool seen = ::stat(file.path.c_str(), &status) == 0;
    check(seen, "cannot look at the data file \"{}\": {}", file.path, std::strerror(errno));
    text +=
        fmt::format("{} {} {} {}.{} {}.{} {}\n", status.st_dev, status.st_ino, status.st_size, status.st_mtim.tv_sec,
                    status.st_mtim.tv_nsec, status.st_ctim.tv_sec, status.st_ctim.tv_nsec, file.name);
  }
  return ckpt::checksum(text);
}

std::uint64_t TextFiles::fingerprint() const {
  std::string text;
  for (const File& file : files_) text += fmt::format("{} {}\n", file.size, file.name);
  return ckpt::checksum(text);
}

}  // namespace sherd
