-- For wrk: asks each of the paths in KVROOM_FLOOD_PATHS in turn, and says as JSON what came of it.

local paths = {}
for path in string.gmatch(os.getenv("KVROOM_FLOOD_PATHS"), "%S+") do
  paths[#paths + 1] = path
end

-- Threads begin at different paths.
local at, threads = 0, {}
function setup(thread)
  thread:set("at", at)
  at = at + 3
  threads[#threads + 1] = thread
end

-- What was not a success, by status and code, or by the failed check's name. Two recordings are made at
-- a time, and a third one is told so: that is as meant.
refusals, limited = {}, 0
function response(status, _, body)
  if status == 503 and string.find(body, '"limit":"recordings at a time"', 1, true) then
    limited = limited + 1
  elseif status >= 400 then
    local why = string.match(body, '"code":"([^"]+)"') or string.match(body, '"name":"([^"]+)","ok":false') or "?"
    local key = status .. " " .. why
    refusals[key] = (refusals[key] or 0) + 1
  end
end

function request()
  at = at % #paths + 1
  return wrk.format("GET", paths[at])
end

function done(summary, latency, requests)
  local e, limited = summary.errors, 0
  for _, thread in ipairs(threads) do
    limited = limited + thread:get("limited")
    for key, count in pairs(thread:get("refusals")) do
      io.stderr:write(string.format("refused %s: %d\n", key, count))
    end
  end
  print(string.format(
    '{"requests": %d, "seconds": %.1f, "refused": %d, "limited": %d, "connect": %d, "read": %d, "write": %d, "timeout": %d, '
      .. '"p50_us": %d, "p99_us": %d, "max_us": %d}',
    summary.requests, summary.duration / 1e6, e.status - limited, limited, e.connect, e.read, e.write, e.timeout,
    latency:percentile(50), latency:percentile(99), latency.max))
end
