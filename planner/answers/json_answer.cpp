#include "planner/answers/json_answer.h"

#include <nlohmann/json.hpp>

#include "core/json_files.h"

namespace shardplan {
namespace {

using Json = nlohmann::ordered_json;

template <class T>
Json or_null(const std::optional<T>& value) {
  return value ? Json(*value) : Json(nullptr);
}

Json json_from_range(const ByteRange& range) { return Json::array({range.low_bytes, range.high_bytes}); }

// Knobs as their words; null: searched.
Json json_from_knobs(const FixedKnobs& knobs) {
  const auto word = [](const auto& value, auto text) { return value ? Json(text(*value)) : Json(nullptr); };
  return {{"shard_degree", or_null(knobs.shard_degree)},
          {"replicate_degree", or_null(knobs.replicate_degree)},
          {"units", word(knobs.units, text_from_units)},
          {"root", word(knobs.root, text_from_root)},
          {"reshard_after_forward", word(knobs.reshard, text_from_reshard)},
          {"recompute", word(knobs.recompute, text_from_recompute)},
          {"micro_batch", or_null(knobs.micro_batch)},
          {"grad_accum", or_null(knobs.grad_accum)},
          {"accum_sync", word(knobs.accum_sync, text_from_accum_sync)},
          {"prefetch", or_null(knobs.prefetch)},
          {"init", word(knobs.init, text_from_init)}};
}

// The job itself (dtypes, optimizer, data) stands whole in the plan's own "workload".
Json json_from_request(const PlanRequest& request) {
  const Precision& p = request.workload.precision;
  return {{"model", request.model.name},
          {"hardware", request.hardware.id},
          {"gpus", request.gpus},
          {"nodes", request.nodes},
          {"seq_len", request.workload.seq_len},
          {"global_batch", request.workload.global_batch == 0 ? Json(nullptr) : Json(request.workload.global_batch)},
          {"train", request.workload.train},
          {"freeze", request.workload.freeze},
          {"stored_dtype", dtype_name(p.stored)},
          {"compute_dtype", dtype_name(p.compute)},
          {"reduce_dtype", dtype_name(p.reduce)},
          {"state_dtype", dtype_name(p.state)},
          {"optimizer", request.workload.optimizer.name},
          {"optimizer_form", request.workload.optimizer.form},
          {"memory_limit_bytes", or_null(request.memory_limit_bytes)},
          {"host_memory_limit_bytes", or_null(request.host_memory_limit_bytes)},
          {"objective", request.objective == Objective::Throughput ? "throughput" : "memory"},
          {"knobs", json_from_knobs(request.knobs)}};
}

Json json_from_planned(const PlannedChoice& planned) {
  return {{"plan", json_from_plan(planned.plan)}, {"forecast", json_from_forecast(planned.forecast)}};
}

Json json_from_explanation(const Explanation& explanation) {
  Json others = Json::array();
  for (const OtherWord& other : explanation.instead_of) {
    others.push_back({{"value", other.value},
                      {"peak_allocated_bytes", other.peak_allocated_bytes},
                      {"step_seconds", other.step_seconds},
                      {"tokens_per_second_per_gpu", other.tokens_per_second_per_gpu},
                      {"over_capacity_bytes", std::max<std::int64_t>(other.over_bytes, 0)},
                      {"counted_only", other.counted_only}});
  }
  return {{"decision", explanation.decision},
          {"chosen", explanation.chosen},
          {"given", explanation.given},
          {"because", explanation.because},
          {"instead_of", std::move(others)}};
}

}  // namespace

Json json_from_forecast(const Forecast& f) {
  Json phases = Json::array();
  for (const PhaseForecast& phase : f.phases) {
    phases.push_back({{"phase", phase_name(phase.phase)},
                      {"peak_requested_bytes", phase.peak_requested_bytes},
                      {"peak_allocated_bytes", phase.peak_allocated_bytes},
                      {"peak_reserved_bytes", nullptr},
                      {"host_peak_bytes", phase.host_peak_bytes},
                      {"peak_task", phase.peak_task},
                      {"by_category_bytes", json_from_categories(phase.at_peak)}});
  }
  Json communication = Json::array();
  for (const CommunicationLine& line : f.communication) {
    communication.push_back({{"collective", collective_name(line.collective)},
                             {"axis", line.axis},
                             {"calls", line.calls},
                             {"bytes_per_rank", line.bytes_per_rank},
                             {"seconds", line.seconds},
                             {"exposed_seconds", line.exposed_seconds}});
  }
  return {
      {"peak_requested_bytes", f.peak_requested_bytes},
      {"peak_allocated_bytes", f.peak_allocated_bytes},
      {"peak_active_bytes", nullptr},
      {"peak_reserved_bytes", nullptr},
      {"device_bytes", f.device_bytes},
      {"capacity_bytes", f.capacity_bytes},
      {"host_peak_bytes", f.host_peak_bytes},
      {"peak_phase", phase_name(f.peak_phase)},
      {"peak_task", f.peak_task},
      {"by_category_bytes", json_from_categories(f.by_category)},
      {"phases", std::move(phases)},
      {"step_seconds", f.step_seconds},
      {"tokens_per_second_per_gpu", f.tokens_per_second_per_gpu},
      {"model_flops_utilization_fraction", or_null(f.model_flops_utilization_fraction)},
      // The count is exact for the program that runs; what surrounds it is known as ranges. A band of the time needs calibration.
      {"uncertainty",
       {{"peak_allocated_bytes", Json::array({f.peak_allocated_bytes, f.peak_allocated_bytes})},
        {"device_bytes", json_from_range(f.estimate.device)},
        {"step_seconds", nullptr}}},
      {"communication", std::move(communication)}};
}

Json json_from_answer(const Answer& answer, std::optional<double> search_seconds) {
  const PlanRequest& request = answer.request;
  Json document = {{"schema_version", 1},
                   {"kind", "shardplan.answer"},
                   {"request", json_from_request(request)},
                   {"feasible", answer.best.has_value()}};
  document["plan"] = answer.best ? json_from_plan(answer.best->plan) : Json(nullptr);
  document["forecast"] = answer.best ? json_from_forecast(answer.best->forecast) : Json(nullptr);
  document["fsdp2_forecast"] = nullptr;
  document["alternatives"] = Json::array();
  for (const Alternative& alternative : answer.alternatives) {
    Json entry = {{"changes", alternative.changes}, {"label", alternative.label}};
    entry.update(json_from_planned(alternative.planned));
    document["alternatives"].push_back(std::move(entry));
  }
  document["infeasible"] = nullptr;
  if (answer.infeasible) {
    Json remedies = Json::array();
    for (const Remedy& remedy : answer.infeasible->remedies) {
      Json entry = {{"change", remedy.change}};
      entry.update(json_from_planned(remedy.planned));
      remedies.push_back(std::move(entry));
    }
    document["infeasible"] = {{"binding", answer.infeasible->binding},
                              {"short_by_bytes", answer.infeasible->short_by_bytes},
                              {"closest", json_from_planned(answer.infeasible->closest)},
                              {"remedies", std::move(remedies)}};
  }
  document["explanation"] = Json::array();
  for (const Explanation& explanation : answer.explanation) document["explanation"].push_back(json_from_explanation(explanation));
  document["search"] = {{"space", answer.search.space},
                        {"evaluated", answer.search.evaluated},
                        {"seconds", or_null(search_seconds)},
                        {"exact", answer.search.exact},
                        {"gap_fraction", answer.search.gap_fraction}};
  return document;
}

}  // namespace shardplan
