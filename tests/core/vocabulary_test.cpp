// The closed lists of core: every word reads back as what it names, and no word names two things.
#include <gtest/gtest.h>

#include <set>

#include "core/dtype.h"
#include "core/error.h"
#include "core/memory_category.h"
#include "core/names.h"
#include "core/step_program.h"
#include "tests/core/thrown.h"

namespace shardplan {
namespace {

template <class Enum, class Name, class FromName>
void expect_closed_list(int count, Name name, FromName from_name) {
  std::set<std::string_view> seen;
  for (int i = 0; i < count; ++i) {
    const auto value = static_cast<Enum>(i);
    EXPECT_EQ(from_name(name(value)), value) << name(value);
    EXPECT_TRUE(seen.insert(name(value)).second) << name(value);
  }
  EXPECT_FALSE(from_name("no such word"));
  EXPECT_FALSE(from_name(""));
  EXPECT_THROW((void)name(static_cast<Enum>(count)), CheckFailure);
}

TEST(Vocabulary, EveryWordReadsBackAsWhatItNames) {
  expect_closed_list<DType>(9, dtype_name, dtype_from_name);
  expect_closed_list<DType>(9, torch_name, dtype_from_torch_name);
  expect_closed_list<DType>(9, safetensors_name, dtype_from_safetensors_name);
  expect_closed_list<MemoryCategory>(kNumMemoryCategories, category_name, category_from_name);
  expect_closed_list<Phase>(5, phase_name, phase_from_name);
  expect_closed_list<TaskKind>(kNumTaskKinds, task_kind_name, task_kind_from_name);
  expect_closed_list<CollectiveKind>(4, collective_name, collective_from_name);
  expect_closed_list<StreamKind>(4, stream_kind_name, stream_kind_from_name);
  expect_closed_list<ComputeClass>(6, compute_class_name, compute_class_from_name);
}

TEST(DType, WidthsAndSpellings) {
  EXPECT_EQ(element_bytes(DType::F32), 4);
  EXPECT_EQ(element_bytes(DType::BF16), 2);
  EXPECT_EQ(element_bytes(DType::F16), 2);
  EXPECT_EQ(element_bytes(DType::F64), 8);
  EXPECT_EQ(element_bytes(DType::I64), 8);
  EXPECT_EQ(element_bytes(DType::Bool), 1);
  EXPECT_EQ(dtype_from_torch_name("torch.bfloat16"), DType::BF16);
  EXPECT_EQ(dtype_from_torch_name("bfloat16"), DType::BF16);
  EXPECT_FALSE(dtype_from_torch_name("torch.torch.bfloat16"));
  EXPECT_TRUE(is_floating(DType::BF16));
  EXPECT_FALSE(is_floating(DType::I64));
}

// The labels that users know from PyTorch and that files hold, in the order of every table.
TEST(MemoryCategory, LabelsAndOrderAreFixed) {
  EXPECT_EQ(category_name(MemoryCategory::ShardedParam), "Sharded Param");
  EXPECT_EQ(category_name(MemoryCategory::UnshardedParam), "Unsharded Param");
  EXPECT_EQ(category_name(MemoryCategory::OptState), "OptState");
  EXPECT_EQ(category_name(MemoryCategory::ReduceScatter), "Reduce Scatter");
  EXPECT_EQ(category_name(MemoryCategory::CudaContext), "CUDA context");
  EXPECT_EQ(category_name(MemoryCategory::Nccl), "NCCL");
  EXPECT_EQ(static_cast<int>(MemoryCategory::Nccl), kNumMemoryCategories - 1);
}

TEST(CategoryBytes, TotalIsTheSumOverCategories) {
  CategoryBytes bytes;
  bytes[MemoryCategory::OptState] = 3;
  bytes[MemoryCategory::Nccl] = 4;
  EXPECT_EQ(bytes.total(), 3 + 4);
}

TEST(Names, AreComparedByLettersAndDigitsAlone) {
  EXPECT_EQ(letters_and_digits("Llama-3.1-8B"), "llama318b");
  for (const char* spelling : {"llama3.1-8b", "llama_31_8b", "LLAMA 3.1 8B"})
    EXPECT_EQ(letters_and_digits(spelling), "llama318b") << spelling;
  EXPECT_EQ(letters_and_digits("/-_. \xc3\xa9"), "");
}

TEST(Error, SaysWhatWhereAndWhatToDoAndLeavesOutWhatIsEmpty) {
  EXPECT_STREQ(ConfigError("what", "where", "remedy").what(), "what\n  at: where\n  try: remedy");
  EXPECT_STREQ(ConfigError("what", "", "remedy").what(), "what\n  try: remedy");
  EXPECT_STREQ(ConfigError("what").what(), "what");
  EXPECT_EQ(ConfigError("what", "where", "remedy").where(), "where");
}

TEST(Error, ExitCodeFollowsFromTheType) {
  EXPECT_EQ(UsageError("").code(), ExitCode::Usage);
  EXPECT_EQ(ConfigError("").code(), ExitCode::BadInput);
  EXPECT_EQ(IoError("").code(), ExitCode::RuntimeFailure);
  EXPECT_EQ(DeviceError("").code(), ExitCode::RuntimeFailure);
  EXPECT_EQ(static_cast<int>(ExitCode::StoppedAtCheckpoint), 75);
}

TEST(Check, NamesTheLawAndThePlace) {
  const int line = __LINE__ + 1;
  const std::string message = thrown<CheckFailure>([] { CHECK(1 > 2, "one is above two"); });
  EXPECT_EQ(message, "broken law: one is above two\n  condition: 1 > 2\n  at: " __FILE__ ":" + std::to_string(line));
}

}  // namespace
}  // namespace shardplan
