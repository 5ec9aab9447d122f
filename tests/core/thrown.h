// The whole message of the error that a call throws, for tests that assert it.
#pragma once

#include <gtest/gtest.h>

#include <string>

namespace shardplan {

template <class ExpectedError, class Call>
std::string thrown(Call call) {
  try {
    call();
  } catch (const ExpectedError& error) {
    return error.what();
  } catch (const std::exception& other) {
    return std::string("another kind of error: ") + other.what();
  }
  return "no error";
}

}  // namespace shardplan
