# LibTorch as imported targets, made by hand from the wheel: find_package(Torch) of the CUDA build would demand nvcc even for a CPU program.
set(torch_include "${SHARDPLAN_TORCH_DIR}/include")
set(torch_lib "${SHARDPLAN_TORCH_DIR}/lib")

function(shardplan_import_library target file)
  add_library(${target} SHARED IMPORTED GLOBAL)
  set_target_properties(${target} PROPERTIES
    IMPORTED_LOCATION "${torch_lib}/${file}"
    IMPORTED_NO_SONAME ON
    # Searched last: the tree brings its own fmt, which must not shadow the one that core is built with.
    INTERFACE_COMPILE_OPTIONS "SHELL:-idirafter ${torch_include};SHELL:-idirafter ${torch_include}/torch/csrc/api/include")
endfunction()

shardplan_import_library(torch::c10 libc10.so)
shardplan_import_library(torch::torch_cpu libtorch_cpu.so)
set_target_properties(torch::torch_cpu PROPERTIES INTERFACE_LINK_LIBRARIES torch::c10)
set_target_properties(torch::torch_cpu PROPERTIES INTERFACE_COMPILE_DEFINITIONS "USE_DISTRIBUTED;USE_C10D_GLOO")

# CUDA part: a module of its own, so that a CPU run loads neither CUDA nor NCCL.
set(SHARDPLAN_WITH_NCCL OFF)
if(NOT SHARDPLAN_NCCL STREQUAL "OFF")
  find_package(CUDAToolkit QUIET)
  if(CUDAToolkit_FOUND AND EXISTS "${torch_lib}/libtorch_cuda.so")
    find_path(SHARDPLAN_NCCL_INCLUDE nccl.h
      HINTS "${SHARDPLAN_TORCH_DIR}/../nvidia/nccl/include" "${SHARDPLAN_TORCH_DIR}/../nvidia/cu13/include")
    if(SHARDPLAN_NCCL_INCLUDE)
      shardplan_import_library(torch::c10_cuda libc10_cuda.so)
      shardplan_import_library(torch::torch_cuda libtorch_cuda.so)
      set(SHARDPLAN_WITH_NCCL ON)
    endif()
  endif()
  if(SHARDPLAN_NCCL STREQUAL "ON" AND NOT SHARDPLAN_WITH_NCCL)
    message(FATAL_ERROR "SHARDPLAN_NCCL=ON, but the CUDA toolkit, nccl.h or libtorch_cuda.so is missing")
  endif()
endif()
message(STATUS "CUDA and NCCL part: ${SHARDPLAN_WITH_NCCL}")
