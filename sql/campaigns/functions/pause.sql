-- Pausing and canceling: takes queued send jobs out of the reach of claims, and waits for reservations under way.

create or replace function execution.shelve_jobs(p_tenant_id uuid, p_run_id uuid)
returns void
language sql
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
as $$
    update execution.job_queue as job
       set run_after = 'infinity',
           waits_for = null
      from (select waiting.tenant_id, waiting.id
              from execution.job_queue as waiting
             where waiting.tenant_id = p_tenant_id
               and waiting.run_id = p_run_id
               and waiting.status = 'queued'
               and waiting.run_after < 'infinity'
             order by waiting.id
               for no key update skip locked) as waiting
     where job.tenant_id = p_tenant_id
       and job.id = waiting.id
$$;
comment on function execution.shelve_jobs(uuid, uuid) is
    'Sets run_after of the queued send jobs of a paused or canceled run to infinity, so that no claim takes them. It skips a send job that '
    'a claim has locked; the worker releases such a send job when it cannot reserve.';
revoke all on function execution.shelve_jobs(uuid, uuid) from public;

create or replace function execution.unshelve_jobs(p_tenant_id uuid, p_run_id uuid)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
as $$
declare
    v_due_at timestamptz;
begin
    select greatest(run.scheduled_for, now())
      into v_due_at
      from execution.campaign_runs as run
     where run.tenant_id = p_tenant_id
       and run.id = p_run_id;
    update execution.job_queue as job
       set run_after = v_due_at
     where job.tenant_id = p_tenant_id
       and job.run_id = p_run_id
       and job.status = 'queued'
       and job.run_after = 'infinity';
end
$$;
comment on function execution.unshelve_jobs(uuid, uuid) is
    'Makes the shelved send jobs of a resumed run due again.';
revoke all on function execution.unshelve_jobs(uuid, uuid) from public;

-- begin_windows locks its send jobs before it reads the phase. Once these locks were seen free, no transaction is left that
-- saw the phase in progress.
create or replace function execution.await_reservations(p_tenant_id uuid, p_campaign_id uuid, p_phase text)
returns bigint
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
as $$
declare
    v_run_id uuid;
    v_job_id uuid;
    v_in_flight bigint;
begin
    perform tenancy.require_tenant(p_tenant_id);
    select run.id
      into v_run_id
      from execution.campaign_phases as phase
           join execution.campaign_runs as run
             on run.tenant_id = phase.tenant_id and run.phase_id = phase.id
     where phase.tenant_id = p_tenant_id
       and phase.campaign_id = p_campaign_id
       and phase.phase = p_phase
     order by run.number desc
     limit 1;
    -- Stop waiting for a worker that hangs inside its transaction. The caller can ask again.
    perform set_config('lock_timeout', '10s', true);
    -- Lock one send job at a time and release it at once: holding several locks while waiting for another can deadlock.
    for v_job_id in
        select job.id
          from execution.job_queue as job
         where job.tenant_id = p_tenant_id
           and job.run_id = v_run_id
           and job.status = 'locked'
    loop
        begin
            perform
               from execution.job_queue as job
              where job.tenant_id = p_tenant_id
                and job.id = v_job_id
                for no key update;
            raise sqlstate 'PR000';
        exception when sqlstate 'PR000' then
            null; -- the rollback to the savepoint released the lock
        end;
    end loop;
    select coalesce(sum(progress.in_flight), 0)::bigint
      into v_in_flight
      from execution.run_progress(p_tenant_id, array[v_run_id]) as progress;
    return v_in_flight;
end
$$;
comment on function execution.await_reservations(uuid, uuid, text) is
    'Waits until every transaction that began to reserve items of the phase before its pause or cancel has committed. Returns '
    'the number of calls in flight.';
revoke all on function execution.await_reservations(uuid, uuid, text) from public;
grant execute on function execution.await_reservations(uuid, uuid, text) to postrider_app;
