-- By tenbin: jobs of plain sbatch wait for tenbin, which starts them as its policy says.
--
-- They are held by the earliest time of their start, which tenbin moves on: without it they start by
-- themselves, an hour later at most. New ones are held only while tenbin keeps the file LEASE fresh.
-- Not held: srun and salloc, jobs of several components, with a reservation, in other partitions, and
-- sbatch --comment=tenbin:no
--
-- As slurm.conf has it: JobSubmitPlugins=lua, and this file beside slurm.conf as job_submit.lua. A site
-- with a job_submit.lua of its own keeps this one as tenbin.lua there: dofile("/etc/slurm/tenbin.lua") before
-- its functions, and tenbin_hold(job_desc, part_list) in its slurm_job_submit, before it returns slurm.SUCCESS.

local LEASE = $lease
local PARTITION = $partition -- nil: the default one
local UNSET = 4294967294

local function until_when()
   local file = io.open(LEASE)
   if not file then return nil end
   local last, gate = (file:read("*l") or ""):match("^(%d+) (%d+)$$")
   file:close()
   if last and tonumber(last) >= os.time() then return tonumber(gate) end
   return nil
end

local function in_partition(job, parts)
   if job.partition ~= nil and job.partition ~= "" then
      if PARTITION ~= nil then return job.partition == PARTITION end
      return parts[job.partition] ~= nil and parts[job.partition].flag_default == 1
   end
   for name, part in pairs(parts) do
      if part.flag_default == 1 then return PARTITION == nil or name == PARTITION end
   end
   return false
end

local function hold(job, parts)
   if job.script == nil or job.script == "" or not in_partition(job, parts) then return end
   if job.comment ~= nil and job.comment:sub(1, 7) == "tenbin:" then return end
   if job.het_job_offset ~= nil and job.het_job_offset < UNSET then return end
   if job.reservation ~= nil and job.reservation ~= "" then return end
   local gate, now = until_when(), os.time()
   if not gate then return end
   local mark, begin = "tenbin:taken", job.begin_time
   if begin ~= nil and begin > now and begin < UNSET then mark = mark .. " begin=" .. begin end
   if job.admin_comment ~= nil and job.admin_comment ~= "" then mark = job.admin_comment .. " " .. mark end
   job.admin_comment = mark
   job.begin_time = now + gate
   local bell = io.open(LEASE .. ".bell", "w")
   if bell then bell:write(now, "\n"); bell:close() end
end

-- A fault in it must not keep anybody from submitting.
function tenbin_hold(job, parts)
   local fine, what = pcall(hold, job, parts)
   if not fine then slurm.log_error("tenbin: %s", tostring(what)) end
end

function slurm_job_submit(job, parts, uid)
   tenbin_hold(job, parts)
   return slurm.SUCCESS
end

function slurm_job_modify(job, record, parts, uid)
   return slurm.SUCCESS
end

return slurm.SUCCESS
