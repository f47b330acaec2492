#include "tests/soak/hostile_targets.h"

#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <sstream>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "nn/checkpoint/format/checksum.h"
#include "nn/checkpoint/format/manifest_json.h"
#include "nn/checkpoint/format/rank_file.h"
#include "nn/checkpoint/format/saves.h"
#include "nn/checkpoint/load/checkpoint_reader.h"
#include "nn/data/token_data.h"
#include "nn/interop/huggingface.h"
#include "nn/interop/huggingface_config.h"
#include "runtime/comm/store/rendezvous_file.h"
#include "runtime/comm/store/store_wire.h"
#include "runtime/comm/store/tcp_store.h"
#include "runtime/comm/store/tcp_store_server.h"
#include "runtime/os/descriptor.h"
#include "runtime/tensor/error.h"
#include "tests/support/source_path.h"
#include "tests/support/temp_dir.h"
#include "tools/train/config.h"
#include "tools/train/links.h"

namespace sherd::testing {

using namespace train;

namespace {

using namespace ckpt;

using nlohmann::json;

// ---- checkpoints ----

std::vector<float> numbers(std::size_t count) {
  std::vector<float> list(count);
  for (std::size_t i = 0; i < count; ++i) list[i] = static_cast<float>(i) * 0.25F;
  return list;
}

/// A save of two ranks: what of it is altered is what derived readers name.
class SaveReader : public HostileReader {
 public:
  explicit SaveReader(std::string altered) {
    const std::vector<float> w = numbers(600), b = numbers(7);
    const std::string name = new_save_name(dir_.path(), 12);
    Manifest manifest;
    manifest.step = 12;
    manifest.world_size = 2;
    manifest.run = "0123abcd";
    manifest.config = "steps = 10\n[model]\nlayers = 2\n";
    manifest.vocabulary = "chars \n\u00e9";
    manifest.state = {{"loss", 2.5}, {"seed", std::int64_t{7}}, {"tag", std::string("a\"b")}};
    for (int rank = 0; rank < 2; ++rank) {
      std::vector<Piece> pieces;
      for (const char* kind : {"param", "optim.m"})
        pieces.push_back({.name = "blocks.0.w",
                          .kind = kind,
                          .shape = {40, 30},
                          .box = {{20 * rank, 0}, {20, 30}},
                          .bytes = std::as_bytes(std::span(w))});
      if (rank == 0)
        pieces.push_back({.name = "b", .shape = {7}, .box = {{0}, {7}}, .bytes = std::as_bytes(std::span(b))});
      add(manifest, write_rank_file(dir_.path(), name, rank, pieces));
    }
    commit(dir_.path(), name, manifest);
    file_ = name + "/" + altered;
    good_ = dir_.read(file_);
  }
  std::vector<std::string> samples() override { return {good_}; }
  void read(const std::string& input) override {
    dir_.write(file_, input);
    const CheckpointReader reader(dir_.path());
    reader.verify();
    std::vector<std::byte> bytes(1 << 14);
    for (const PieceEntry& piece : reader.manifest().pieces)
      if (static_cast<std::size_t>(piece.bytes) <= bytes.size())
        reader.read_box(piece.kind, piece.name, piece.dtype, piece.shape, piece.box,
                        std::span(bytes).first(static_cast<std::size_t>(piece.bytes)));
  }

 protected:
  TempDir dir_;
  std::string file_, good_;
};

class RankFileReader : public SaveReader {
 public:
  RankFileReader() : SaveReader("rank-00001.safetensors") {}
  bool finds_every_bit() const override { return true; }
};

class ManifestReader : public SaveReader {
 public:
  ManifestReader() : SaveReader("manifest.json") {}
  bool finds_every_bit() const override { return true; }
};

/// Manifests with a true checksum, as a hand or a bug would leave them.
class SealedManifestReader : public SaveReader {
 public:
  SealedManifestReader() : SaveReader("manifest.json") {
    json outer = json::parse(good_);
    inner_ = outer["manifest"].dump();
    version_ = outer["version"];
    outer["manifest"] = "@";
    outer["checksum"] = "#";
    outer_ = outer.dump();
  }
  std::vector<std::string> samples() override { return {inner_}; }
  std::string sealed(const std::string& input) override {
    std::string text = outer_;
    text.replace(text.find("\"@\""), 3, input);
    return text.replace(text.find("\"#\""), 3,
                        fmt::format("\"{}\"", checksum_text(manifest_checksum(input, version_))));
  }

 private:
  std::string outer_, inner_;
  std::int64_t version_ = 0;
};

class SafetensorsReader : public HostileReader {
 public:
  std::vector<std::string> samples() override {
    return {text_of_file(source_path("tests/golden/norm.safetensors")),
            text_of_file(source_path("tests/golden/loss.safetensors"))};
  }
  void read(const std::string& input) override {
    const SafetensorsFile file = SafetensorsFile::open(dir_.write("x.safetensors", input));
    std::vector<std::byte> bytes(256);
    for (const TensorEntry& tensor : file.tensors())
      file.read(tensor, 0, std::span(bytes).first(static_cast<std::size_t>(std::min<std::int64_t>(256, tensor.bytes))));
  }

 private:
  TempDir dir_;
};

// ---- configs and command lines ----

constexpr std::size_t kLargestArgument = std::size_t{1} << 17;  // Linux takes no longer ones

class ConfigReader : public HostileReader {
 public:
  std::vector<std::string> samples() override {
    std::vector<std::string> list = {to_toml(TrainConfig{})};
    for (const auto& entry : std::filesystem::directory_iterator(source_path("tools/configs")))
      if (entry.path().extension() == ".toml") list.push_back(text_of_file(entry.path()));
    return list;
  }
  void read(const std::string& input) override {
    TrainConfig config = train_config_from_toml(input, "config");
    resolve(config);
  }
};

/// A flag to a line.
class FlagsReader : public HostileReader {
 public:
  std::size_t largest() const override { return kLargestArgument; }
  std::vector<std::string> samples() override {
    return {
        "a.toml\n--data=x\n--steps\n10\n--strategy=hybrid_shard\n--mesh=replicate=2,dp=2\n--model.layers=2\n--compile",
        "a.toml\n--link=dp=2e9,0;replicate=2e8,0\n--save\nd\n--save-every\n7\n--optimizer.lr\n1e-3\n--threads=2",
        "--resume\nd\n--steps=20\n--no-compile\n--offload=optimizer:/x\n--recompute\nfull\n--param-dtype=bf16"};
  }
  void read(const std::string& input) override {
    std::vector<std::string> words;
    std::istringstream lines(input);
    for (std::string line; std::getline(lines, line);) words.push_back(line);
    TrainConfig config;
    ConfigTable table = bind(config);
    const std::vector<std::string_view> views(words.begin(), words.end());
    apply_flags(table, parse_command_line(table, views));
    resolve(config);
  }
};

class MeshReader : public HostileReader {
 public:
  std::size_t largest() const override { return kLargestArgument; }
  std::vector<std::string> samples() override { return {"dp=4", "replicate=2,dp=2", "pp=1,dp=2,tp=2", "dp=2,tp"}; }
  void read(const std::string& input) override { nn::MeshAxes axes(input); }
};

class LinkReader : public HostileReader {
 public:
  std::size_t largest() const override { return kLargestArgument; }
  std::vector<std::string> samples() override { return {"2e9,0", "dp=2e9,0;replicate=2e8,1e-5"}; }
  void read(const std::string& input) override { Links links(input); }
};

// ---- data ----

class VocabularyReader : public HostileReader {
 public:
  std::vector<std::string> samples() override { return {"bytes", "chars \n\u00e9\u4e16abc"}; }
  void read(const std::string& input) override { Vocabulary::from_text(input); }
};

class TextReader : public HostileReader {
 public:
  std::vector<std::string> samples() override {
    return {text_of_file(source_path("README.md")), "\u00e9\u4e16 abc \U0001F600"};
  }
  void read(const std::string& input) override {
    const TokenData data = TokenData::open(dir_.write("x.txt", input), Vocabulary::Kind::chars);
    std::vector<std::int32_t> tokens(static_cast<std::size_t>(std::min<std::int64_t>(data.num_tokens(), 64)));
    data.read(data.num_tokens() - static_cast<std::int64_t>(tokens.size()), tokens);
  }

 private:
  TempDir dir_;
};

// ---- Hugging Face ----

/// One file of a directory in several files.
class HuggingFaceReader : public HostileReader {
 public:
  HuggingFaceReader(const std::string& model, std::string altered) : altered_(std::move(altered)) {
    std::filesystem::copy(source_path("tests/golden/huggingface/" + model), dir_.path(),
                          std::filesystem::copy_options::recursive | std::filesystem::copy_options::overwrite_existing);
    good_ = dir_.read(altered_);
  }
  std::vector<std::string> samples() override { return {good_}; }
  void read(const std::string& input) override {
    dir_.write(altered_, input);
    const nn::HuggingFaceWeights weights(dir_.path());
  }

 private:
  TempDir dir_;
  std::string altered_, good_;
};

// ---- ranks that find each other ----

class RendezvousReader : public HostileReader {
 public:
  RendezvousReader() {
    std::filesystem::permissions(dir_.path(), std::filesystem::perms::owner_all);
    const PublishedAddress published(dir_.path(), "job", {4711, "00ff00ff"});
    for (const auto& entry : std::filesystem::directory_iterator(dir_.path())) name_ = entry.path().filename();
    good_ = dir_.read(name_);
  }
  std::vector<std::string> samples() override { return {good_}; }
  void read(const std::string& input) override {
    dir_.write(name_, input);
    await_address(dir_.path(), "job", std::chrono::milliseconds(0));
  }

 private:
  TempDir dir_;
  std::string name_, good_;
};

/// What a stranger says to a store, after a good handshake or instead of one. Then ranks must still be served.
class StoreReader : public HostileReader {
 public:
  explicit StoreReader(bool is_greeted) : is_greeted_(is_greeted) {}
  std::size_t largest() const override { return std::size_t{1} << 18; }  // thousands of requests

  std::vector<std::string> samples() override {
    const auto request = [](wire::Op op, std::string_view key, std::string_view value, std::int64_t argument) {
      const auto head = wire::encode(wire::RequestHeader{op, static_cast<std::uint16_t>(key.size()),
                                                         static_cast<std::uint32_t>(value.size()), argument});
      return std::string(head.data(), head.size()).append(key).append(value);
    };
    return {request(wire::Op::set, "k", "value", 0) + request(wire::Op::get, "k", "", 1) +
                request(wire::Op::add, "n", "", 3),
            request(wire::Op::add, "k", "", 1) + request(wire::Op::get, "none", "", 2)};
  }

  void read(const std::string& input) override {
    const Descriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<std::uint16_t>(server_.port()));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    check(::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0, "no connection");
    if (is_greeted_) greet(socket);
    (void)::send(socket.get(), input.data(), input.size(), MSG_NOSIGNAL);
    ::shutdown(socket.get(), SHUT_WR);
    char answer[4096];
    while (::read(socket.get(), answer, sizeof(answer)) > 0) continue;
    const std::string key = fmt::format("good.{}", ++count_);
    friend_.set(key, "x");
    if (friend_.get(key, std::chrono::seconds(5)) != "x") throw std::logic_error("the store has lost a value");
  }

 private:
  static void greet(const Descriptor& socket) {
    wire::Hello hello;
    check(::recv(socket.get(), &hello, sizeof(hello), MSG_WAITALL) == sizeof(hello), "no hello");
    wire::ClientProof proof{};
    proof.digest = wire::proof("", "client", hello.nonce, proof.nonce);
    (void)::send(socket.get(), &proof, sizeof(proof), MSG_NOSIGNAL);
    wire::ServerProof answer;
    check(::recv(socket.get(), &answer, sizeof(answer), MSG_WAITALL) == sizeof(answer), "no proof");
  }

  bool is_greeted_;
  TcpStoreServer server_{{.peer_deadline = std::chrono::milliseconds(200)}};
  TcpStore friend_{{.port = server_.port()}};
  int count_ = 0;
};

}  // namespace

std::string text_of_file(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return std::move(text).str();
}

const std::vector<HostileTarget>& hostile_targets() {
  const auto hugging_face = [](std::string model, std::string file) {
    return [=] { return std::make_unique<HuggingFaceReader>(model, file); };
  };
  // Files of a save are read a block at a time; a list of flags has a string for each, and an argument is quoted where
  // it is refused, but neither is longer than Linux takes; a text of characters needs a table of all there are.
  std::vector<HostileTarget> files = {
      {"manifest", 1280 << 10, [] { return std::make_unique<ManifestReader>(); }},
      {"sealed_manifest", 1280 << 10, [] { return std::make_unique<SealedManifestReader>(); }},
      {"rank_file", 1280 << 10, [] { return std::make_unique<RankFileReader>(); }},
      {"safetensors", 64 << 10, [] { return std::make_unique<SafetensorsReader>(); }},
      {"config", 128 << 10, [] { return std::make_unique<ConfigReader>(); }},
      {"flags", 12288 << 10, [] { return std::make_unique<FlagsReader>(); }},
      {"mesh", 640 << 10, [] { return std::make_unique<MeshReader>(); }},
      {"link", 640 << 10, [] { return std::make_unique<LinkReader>(); }},
      {"vocabulary", 256 << 10, [] { return std::make_unique<VocabularyReader>(); }},
      {"text", 3072 << 10, [] { return std::make_unique<TextReader>(); }},
      {"huggingface_config", 128 << 10, hugging_face("llama", "config.json")},
      {"huggingface_index", 128 << 10, hugging_face("llama", "model.safetensors.index.json")},
      {"rendezvous", 64 << 10, [] { return std::make_unique<RendezvousReader>(); }},
      {"store", 64 << 10, [] { return std::make_unique<StoreReader>(true); }},
      {"store_handshake", 64 << 10, [] { return std::make_unique<StoreReader>(false); }},
  };
  static const std::vector<HostileTarget> targets = [&] {
    for (HostileTarget& target : hostile_prices()) files.push_back(std::move(target));
    return std::move(files);
  }();
  return targets;
}

}  // namespace sherd::testing
