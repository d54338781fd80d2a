-- For wrk: asks each of the paths in KVROOM_FLOOD_PATHS in turn, and says as JSON what came of it.

local paths = {}
for path in string.gmatch(os.getenv("KVROOM_FLOOD_PATHS"), "%S+") do
  paths[#paths + 1] = path
end

-- Threads begin at different paths.
local at = 0
function setup(thread)
  thread:set("at", at)
  at = at + 3
end

function request()
  at = at % #paths + 1
  return wrk.format("GET", paths[at])
end

function done(summary, latency, requests)
  local e = summary.errors
  print(string.format(
    '{"requests": %d, "seconds": %.1f, "refused": %d, "connect": %d, "read": %d, "write": %d, "timeout": %d, '
      .. '"p50_us": %d, "p99_us": %d, "max_us": %d}',
    summary.requests, summary.duration / 1e6, e.status, e.connect, e.read, e.write, e.timeout,
    latency:percentile(50), latency:percentile(99), latency.max))
end
