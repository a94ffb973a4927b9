-- Pausing: takes queued jobs out of the reach of claims, and waits for reservations under way.

create or replace function execution.shelve_jobs(p_run_id uuid)
returns void
language sql
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
as $$
    update execution.job_queue as job
       set run_after = 'infinity',
           waits_for = null
      from (select waiting.id
              from execution.job_queue as waiting
             where waiting.run_id = p_run_id
               and waiting.status = 'queued'
               and waiting.run_after < 'infinity'
             order by waiting.id
               for no key update skip locked) as waiting
     where job.id = waiting.id
$$;
comment on function execution.shelve_jobs(uuid) is
    'Sets run_after of the queued jobs of a paused run to infinity, so that no claim takes them. It skips a job that '
    'a claim has locked; the worker releases such a job when it cannot reserve.';
revoke all on function execution.shelve_jobs(uuid) from public;

create or replace function execution.unshelve_jobs(p_run_id uuid)
returns void
language sql
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
as $$
    update execution.job_queue as job
       set run_after = greatest(run.scheduled_for, now())
      from execution.campaign_runs as run
     where run.id = p_run_id
       and job.run_id = run.id
       and job.status = 'queued'
       and job.run_after = 'infinity'
$$;
comment on function execution.unshelve_jobs(uuid) is
    'Makes the shelved jobs of a resumed run due again.';
revoke all on function execution.unshelve_jobs(uuid) from public;

-- begin_windows locks its jobs before it reads the phase. Once these locks were seen free, no transaction is left that
-- saw the phase in progress.
create or replace function execution.await_reservations(p_campaign_id uuid, p_phase text)
returns bigint
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
as $$
declare
    v_tenant_id constant uuid := tenancy.required_tenant_id();
    v_run_id uuid;
    v_job_id uuid;
    v_in_flight bigint;
begin
    select run.id
      into v_run_id
      from execution.campaign_phases as phase
           join execution.campaign_runs as run
             on run.tenant_id = phase.tenant_id and run.phase_id = phase.id
     where phase.tenant_id = v_tenant_id
       and phase.campaign_id = p_campaign_id
       and phase.phase = p_phase
     order by run.number desc
     limit 1;
    -- Stop waiting for a worker that hangs inside its transaction. The caller can ask again.
    perform set_config('lock_timeout', '10s', true);
    -- Lock one job at a time and release it at once: holding several locks while waiting for another can deadlock.
    for v_job_id in
        select job.id
          from execution.job_queue as job
         where job.run_id = v_run_id
           and job.status = 'locked'
    loop
        begin
            perform from execution.job_queue as job where job.id = v_job_id for no key update;
            raise sqlstate 'PR000';
        exception when sqlstate 'PR000' then
            null; -- the rollback to the savepoint released the lock
        end;
    end loop;
    select coalesce(sum(progress.in_flight), 0)::bigint
      into v_in_flight
      from execution.run_progress(array[v_run_id]) as progress;
    return v_in_flight;
end
$$;
comment on function execution.await_reservations(uuid, text) is
    'Waits until every transaction that began to reserve items of the phase before its pause has committed. Returns '
    'the number of calls in flight.';
revoke all on function execution.await_reservations(uuid, text) from public;
grant execute on function execution.await_reservations(uuid, text) to postrider_app;
