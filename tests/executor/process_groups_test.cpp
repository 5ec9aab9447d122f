#include "executor/process_groups.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/full.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include "core/error.h"
#include "executor/counting_allocator.h"
#include "tests/executor/ranks.h"

namespace shardplan {
namespace {

std::string text_of(const at::Tensor& t) {
  return fmt::format("{}", fmt::join(t.const_data_ptr<float>(), t.const_data_ptr<float>() + t.numel(), " "));
}

// Two replicas of two shards: ranks 0 1 | 2 3.
const std::vector<MeshAxis> kMesh = {{.name = "replicate", .degree = 2, .stride = 2}, {.name = "shard", .degree = 2, .stride = 1}};

TEST(ProcessGroups, MeshPlacesRanks) {
  EXPECT_EQ(index_on_axis(kMesh[0], 3), 1);
  EXPECT_EQ(index_on_axis(kMesh[1], 3), 1);
  EXPECT_EQ(ranks_on_axis(kMesh[0], 3), (std::vector<std::int32_t>{1, 3}));
  EXPECT_EQ(ranks_on_axis(kMesh[1], 2), (std::vector<std::int32_t>{2, 3}));
}

TEST(ProcessGroups, GatherFillsEveryStretchFromItsOwner) {
  const auto texts = run_on_ranks(4, [](RankWorld& world) {
    const auto collectives = gloo_collectives(world, kMesh);
    const at::Tensor flat = at::full({4}, -1.0F);
    flat.narrow(0, 2 * collectives->index_on(AxisId(1)), 2).fill_(10 + world.rank());
    collectives->all_gather(AxisId(1), flat);
    return text_of(flat);
  });
  EXPECT_EQ(texts, (std::vector<std::string>{"10 10 11 11", "10 10 11 11", "12 12 13 13", "12 12 13 13"}));
}

TEST(ProcessGroups, ReduceScatterLeavesTheSumInTheOwnStretch) {
  const auto texts = run_on_ranks(4, [](RankWorld& world) {
    const auto collectives = gloo_collectives(world, kMesh);
    const at::Tensor flat = at::arange(4, at::kFloat);
    flat.add_(100 * world.rank());
    collectives->reduce_scatter(AxisId(1), flat);
    return text_of(flat.narrow(0, 2 * collectives->index_on(AxisId(1)), 2));
  });
  // Elements i + 100 r summed over the ranks of the shard axis: 2 i + 100 (r + r').
  EXPECT_EQ(texts, (std::vector<std::string>{"100 102", "104 106", "500 502", "504 506"}));
}

TEST(ProcessGroups, AllReduceSumsOverItsAxisAlone) {
  const auto texts = run_on_ranks(4, [](RankWorld& world) {
    const auto collectives = gloo_collectives(world, kMesh);
    const at::Tensor t = at::full({1}, static_cast<float>(world.rank()));
    collectives->all_reduce(AxisId(0), t);
    return text_of(t);
  });
  EXPECT_EQ(texts, (std::vector<std::string>{"2", "4", "2", "4"}));
}

TEST(ProcessGroups, CollectivesTakeNoMemoryAndLetGoOfIt) {
  const auto texts = run_on_ranks(2, [](RankWorld& world) {
    install_counting_allocator();
    CountingMeter meter;
    const auto collectives = gloo_collectives(world, {{.name = "shard", .degree = 2, .stride = 1}});
    const std::int64_t before = meter.read().current_bytes;
    std::int64_t peak = 0;
    for (int round = 0; round < 50; ++round) {
      const at::Tensor flat = at::full({5000}, 1.0F);
      meter.restart_peak();
      collectives->all_gather(AxisId(0), flat);
      collectives->reduce_scatter(AxisId(0), flat);
      collectives->all_reduce(AxisId(0), flat);
      peak = std::max(peak, meter.read().peak_bytes - before);
    }
    return fmt::format("{} {}", peak, meter.read().current_bytes - before);
  });
  // Nothing beyond the buffer itself, and nothing left when it is gone.
  for (const std::string& text : texts) EXPECT_EQ(text, "20000 0");
}

TEST(ProcessGroups, SumsAndTextsReachEveryone) {
  const auto texts = run_on_ranks(3, [](RankWorld& world) {
    std::array<double, 2> values = {static_cast<double>(world.rank()), 1};
    world.all_sum(values);
    const auto gathered = world.gather_texts("names", fmt::format("r{}", world.rank()));
    world.barrier();
    return fmt::format("{} {} {}", values[0], values[1], fmt::join(gathered, ","));
  });
  EXPECT_EQ(texts, (std::vector<std::string>{"3 3 r0,r1,r2", "3 3 ", "3 3 "}));
}

TEST(ProcessGroups, MessagesBetweenTwoRanksKeepTheirOrder) {
  const auto texts = run_on_ranks(2, [](RankWorld& world) {
    std::array<float, 8> values{};
    std::vector<std::unique_ptr<Transfer>> under_way;
    for (std::size_t i = 0; i < values.size(); ++i) {
      const at::Tensor one = at::from_blob(&values[i], {1}, at::kFloat);
      if (world.rank() == 0) values[i] = static_cast<float>(i);
      under_way.push_back(world.rank() == 0 ? world.send(one, 1) : world.receive(one, 0));
    }
    for (const auto& transfer : under_way) transfer->wait();
    return fmt::format("{}", fmt::join(values, " "));
  });
  EXPECT_EQ(texts[1], "0 1 2 3 4 5 6 7");
}

TEST(ProcessGroups, RanksThatDisagreeAreNamed) {
  const auto texts = run_on_ranks(3, [](RankWorld& world) -> std::string {
    world.agree("the data", "the same", "");
    try {
      world.agree("the plan", world.rank() == 1 ? "bbbb" : "aaaa", "give all ranks the same plan file");
    } catch (const ConfigError& e) {
      return e.what();
    }
    return "no error";
  });
  for (const std::string& text : texts) {
    EXPECT_EQ(text,
              "ranks disagree about the plan: ranks 0 and 2 have aaaa, rank 1 has bbbb\n  at: before any data moved\n  try: give "
              "all ranks the same plan file");
  }
}

TEST(ProcessGroups, APeerThatIsGoneIsAnErrorAtOnce) {
  const auto start = std::chrono::steady_clock::now();
  std::string message;
  try {
    (void)run_local_ranks(2, [](const RankPlace& place) {
      RankWorld world(place, std::chrono::seconds(60));
      const auto collectives = gloo_collectives(world, {{.name = "shard", .degree = 2, .stride = 1}});
      if (place.rank == 1) throw IoError("disk is gone");
      const at::Tensor flat = at::full({2000}, 1.0F);
      collectives->all_gather(AxisId(0), flat);
      return 0;
    });
  } catch (const Error& e) {
    message = e.what();
  }
  EXPECT_EQ(message, "rank 1: disk is gone");
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(20));
}

}  // namespace
}  // namespace shardplan
