// The two levers of the CUDA runtime without a device (device_stand_in.cpp).
#pragma once

#include <cstdint>

void set_stand_in_device(std::uint64_t device_bytes, std::uint64_t outside_bytes);

// Everything recorded on the stream (a cudaStream_t) so far has happened.
void reach_stream(void* stream);
