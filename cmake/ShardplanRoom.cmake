# One function declares a room, one its tests. Sources are listed one per line, sorted, by the room itself.

# shardplan_room(NAME SOURCES ... [PUBLIC ...] [PRIVATE ...])
function(shardplan_room name)
  cmake_parse_arguments(ROOM "" "" "SOURCES;PUBLIC;PRIVATE" ${ARGN})
  add_library(shardplan_${name} STATIC ${ROOM_SOURCES})
  add_library(shardplan::${name} ALIAS shardplan_${name})
  target_link_libraries(shardplan_${name} PUBLIC shardplan_flags ${ROOM_PUBLIC} PRIVATE ${ROOM_PRIVATE})
endfunction()

# shardplan_test(NAME SOURCES ... LIBRARIES ... [LABELS ...] [TIMEOUT seconds] [PROCESSORS n])
function(shardplan_test name)
  cmake_parse_arguments(T "" "TIMEOUT;PROCESSORS" "SOURCES;LIBRARIES;LABELS" ${ARGN})
  if(NOT T_TIMEOUT)
    set(T_TIMEOUT 300)
  endif()
  if(NOT T_PROCESSORS)
    set(T_PROCESSORS 1)
  endif()
  add_executable(${name} ${T_SOURCES})
  target_link_libraries(${name} PRIVATE ${T_LIBRARIES} GTest::gtest GTest::gtest_main)
  target_compile_definitions(${name} PRIVATE
    SHARDPLAN_SOURCE_DIR="${CMAKE_SOURCE_DIR}"
    SHARDPLAN_BINARY_DIR="${CMAKE_BINARY_DIR}")
  add_test(NAME ${name} COMMAND ${name})
  set_tests_properties(${name} PROPERTIES TIMEOUT ${T_TIMEOUT} PROCESSORS ${T_PROCESSORS} LABELS "${T_LABELS}")
endfunction()
